"""The task `market`: agents buy and sell assets (tradable columns of a panel of prices) in episodes of its days."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.common.text import count
from eigen_core.config import Config, CounterfactualConfig
from eigen_core.machine.gpu import CapturedStep, on_device
from eigen_core.market.formats import unit_of
from eigen_core.market.panel import Panel
from eigen_core.networks.actions import ExpectedOutcomes, market_actions
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import Parameters
from eigen_core.networks.policies import Heads
from eigen_core.task.interface import Outcomes, Rollout
from eigen_core.task.linear_start import linear_start
from eigen_core.task.outcome_table import OutcomeTable
from eigen_core.task.panel import (
    EncodedEpisodes,
    MarketEncoding,
    MarketObservation,
    PanelTask,
    held_out_from,
    require_scale,
)
from eigen_core.task.transitions import BlockSampler, rows_of, stored_rewards
from eigen_core.trading.environment import Decision, EpisodeSummary, TradingEnvironment, trade_whole_episodes
from eigen_core.trading.excess import market_gains, mean_excess
from eigen_core.trading.orders import decides, decisions_of_holding, sum_of_day
from eigen_core.trading.prices import Prices


class _Day(NamedTuple):
    """Inputs of the decisions of agents at a step of their episodes, as tensors that a CUDA graph can read."""

    rows: Tensor
    time: Tensor
    portfolio: Tensor
    noise: Tensor | None
    decided: Tensor | None


_COUNTED = ("trades", "wins", "idle_days", "fees")


class MarketTask(PanelTask):
    """Implements `Task` and `KnownOutcomes`: agents trade by the rules of `TradingEnvironment`."""

    def __init__(self, config: Config, panel: Panel, device: torch.device, heads: Heads) -> None:
        # Before the outcomes of too few days are computed.
        require_scale(config, panel.splits, self.steps(config))
        self.prices = Prices.of_panel(panel, device)
        self._outcomes: OutcomeTable | None = None
        if heads.outcomes:
            # Sale targets, evenly spread between their bounds.
            between = (config.trading.min_target, config.trading.max_target)
            targets = torch.linspace(*between, heads.outcomes, dtype=torch.float64, device=device)
            days = np.concatenate([np.arange(piece.start, piece.stop) for piece in panel.observed(config)])
            outcomes = OutcomeTable.of(self.prices, config.trading, torch.from_numpy(days), targets)
            scaled = config.network.linear_scales and config.network.linear_standardised
            self._outcomes = outcomes.standardised() if scaled else outcomes
        start = linear_start(panel, self.prices, config, self._outcomes)
        super().__init__(config, panel, device, heads, market_actions(config, device), start)
        self._decisions = torch.arange(config.trading.trading_bars, device=device)
        self._require_decisions()

    def _require_decisions(self) -> None:
        every, learner = self._config.trading.decide_every, self._config.learner
        if every is None:
            return
        days = torch.tensor(self.panel.splits.training_bars, device=self._device)
        if not decides(self.prices, self._config.trading, days).any():
            raise InputError(
                f"No training day ends at a multiple of trading.decide_every {every}, so agents could never buy: give "
                "a multiple of the length of the bars, or leave it out."
            )
        if isinstance(learner, CounterfactualConfig) and self.outcome_sampler(learner.batch_size) is None:
            raise InputError(
                f"learner.batch_size {learner.batch_size} needs as many different training days, and of those with "
                f"decisions (trading.decide_every {every}) no block has so many: lower learner.batch_size, or set "
                "learner.block_bars higher."
            )

    @staticmethod
    def steps(config: Config) -> int:
        return config.trading.episode_bars if config.replay.settlement_bars else config.trading.trading_bars

    @staticmethod
    def warnings(config: Config, panel: Panel) -> Sequence[str]:
        purchases, unit = config.trading.purchases_per_bar, unit_of(panel.dates)
        warnings = PanelTask.warnings(config, panel)
        held = decisions_of_holding(torch.from_numpy(panel.time), config.trading)
        if panel.assets == 1 or panel.assets > held * purchases:
            return warnings
        often = f"{count(purchases, 'purchase')} a {unit if config.trading.decide_every is None else 'decision'}"
        return (
            *warnings,
            f"With {often} (trading.purchases_per_bar) and positions of up to "
            f"{count(config.trading.holding_bars, unit)} (trading.holding_bars), any of the {panel.assets:,} assets "
            "that is not held is soon bought: agents choose when to buy, but hardly which asset. Buy fewer or hold for "
            "a shorter time, so that it has fewer purchases than there are assets, or trade more assets.",
        )

    @torch.no_grad()
    def play(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> tuple[Rollout, EpisodeSummary]:
        recorded = starts.shape[1] - fixed if record else 0
        encoded = EncodedEpisodes(self.network, weights, starts, self._episode_times[: self.episode_steps])
        if self.network.portfolio_values:
            return self._step_by_step(encoded, starts, noise, recorded)
        return self._at_once(encoded, starts, noise, recorded)

    def _step_by_step(
        self, encoded: EncodedEpisodes, starts: NDArray[np.int64], noise: Tensor | None, recorded: int
    ) -> tuple[Rollout, EpisodeSummary]:
        days, assets = self.episode_steps, self.prices.assets
        environment = TradingEnvironment(self.prices, self._config.trading)
        environment.reset(torch.tensor(starts).flatten())
        kept = (len(starts), recorded, days, assets)
        portfolios = torch.empty((*kept, self.network.portfolio_values), dtype=torch.float16, device=self._device)
        stored = torch.empty((*kept, self.network.box.values), device=self._device)

        def decide(day: _Day) -> tuple[Tensor, Decision | None]:
            prepared = encoded.prepared(day.rows, day.time)
            policy = self.network.policy(encoded.actor, prepared, day.portfolio.float())
            played = policy.play(day.noise)
            actions = played.actions.flatten(0, 1).unbind(-1)
            return played.stored, None if day.decided is None else environment.decide(day.decided, *actions)

        repeated = CapturedStep(decide, self._device, captures=self._config.cuda_graphs)
        for step in range(days):
            portfolio = environment.portfolio().reshape(*starts.shape, assets, -1)
            of_noise = None if noise is None else noise[:, :, step]
            day = _Day(*encoded.of_step(step), portfolio, of_noise, environment.decision_days())
            chosen, decision = repeated(day)
            if recorded:
                portfolios[:, :, step] = portfolio[:, :recorded]
                stored[:, :, step] = chosen[:, :recorded]
            environment.end_day(decision)
        # The last `day` has views that would keep all positions in memory while the results are computed.
        del day
        nothing = torch.zeros((starts.size, assets), device=self._device)
        while not environment.done:
            environment.step(nothing, nothing)
        return self._rollout(environment.rewards(), environment.summary(), starts, portfolios, stored)

    def _at_once(
        self, encoded: EncodedEpisodes, starts: NDArray[np.int64], noise: Tensor | None, recorded: int
    ) -> tuple[Rollout, EpisodeSummary]:
        prepared = encoded.of_all_steps()
        policy = self.network.policy(encoded.actor, prepared.flatten(1, 2), None)
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        taken, stored = (encoded.at_steps(part.reshape(*prepared.shape[:3], *part.shape[2:])) for part in played)
        actions = taken.flatten(0, 1).unbind(-1)
        first_days = torch.tensor(starts).flatten()
        rewards, summary = trade_whole_episodes(self.prices, self._config.trading, first_days, *actions)
        stored = stored[:, :recorded]
        nothing_seen = torch.empty((*stored.shape[:-1], 0), dtype=torch.float16, device=self._device)
        return self._rollout(rewards, summary, starts, nothing_seen, stored)

    def _rollout(
        self, rewards: Tensor, summary: EpisodeSummary, starts: NDArray[np.int64], portfolios: Tensor, stored: Tensor
    ) -> tuple[Rollout, EpisodeSummary]:
        """Return rollout and summary; only each agent's first episodes, as many as `stored` has, give transitions."""
        agents, recorded = stored.shape[:2]
        rows = None
        if recorded:
            of_recorded = stored_rewards(
                rewards.reshape(agents, -1, rewards.shape[1])[:, :recorded].flatten(0, 1), self.episode_steps
            )
            first_days = on_device(starts[:, :recorded].flatten(), self._device)
            stored = stored.flatten(0, 1).to(self.columns["action"].dtype)
            rows = rows_of(first_days, portfolios.flatten(0, 1), stored, of_recorded)
        totals = rewards.cpu().numpy().sum(axis=1).reshape(agents, -1)
        return Rollout(totals, self.counts(starts, summary), rows), summary

    def decisions(self, weights: Tensor, starts: NDArray[np.int64]) -> tuple[Tensor, Excess | None]:
        rollout, summary = self.play(weights, starts)
        bought = summary.asset[..., None] == torch.arange(self.panel.assets, device=summary.asset.device)
        shares = bought.sum(dim=2) / self._config.trading.purchases_per_bar
        return shares, self.excess(rollout)

    def counts(self, starts: NDArray[np.int64], summary: EpisodeSummary) -> dict[str, NDArray[np.float64]]:
        days = torch.tensor(starts, device=self._device).reshape(-1, 1) + self._decisions
        bought, trading = summary.bought, self._config.trading
        day = days.unsqueeze(-1).expand_as(bought)[bought]
        due = self.prices.fills(trading).due_after(day, summary.asset[bought], summary.exit_offset[bought])
        beyond = torch.zeros_like(summary.gain)
        beyond[bought] = summary.gain[bought] - market_gains(self.prices, trading, day, due)
        beyond = sum_of_day(beyond)
        counted = {name: getattr(summary, name) for name in _COUNTED}
        counted |= {"first_day": days[:, 0], "excess_of_days": beyond, "trades_of_days": summary.bought.sum(dim=-1)}
        return {name: values.cpu().numpy().astype(np.float64) for name, values in counted.items()}

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        counts = rollout.counts
        return {
            "trades": float(counts["trades"].mean()),
            "win_rate": float(counts["wins"].sum() / max(counts["trades"].sum(), 1.0)),
            "idle_days": float(counts["idle_days"].mean()),
            "fees": float(counts["fees"].mean()),
        }

    def excess(self, rollout: Rollout) -> Excess | None:
        if self.panel.assets == 1:
            # The market is this asset: every trade gains what the market does.
            return None
        first, gained, traded = (rollout.counts[name] for name in ("first_day", "excess_of_days", "trades_of_days"))
        return mean_excess(gained, traded, first.astype(np.int64), self._config.trading.holding_bars)

    def held_out(self, batch_size: int) -> Sequence[tuple[Tensor, FirstDay]]:
        assert self._outcomes is not None
        days, last_block = self._outcomes.days.cpu().numpy(), self.panel.splits.train.stop - self.block_bars
        batches, start = [], held_out_from(len(days))
        while start < len(days):
            first = int(days[start])
            stop = min(start + batch_size, int(np.searchsorted(days, first + self.block_bars)))
            batches.append((torch.arange(start, stop, device=self._device), min(first, last_block)))
            start = stop
        return batches

    def longest_blocked(self) -> int:
        return self._config.trading.holding_bars

    def outcome_sampler(self, batch_size: int) -> BlockSampler | None:
        assert self._outcomes is not None
        days = self._outcomes.days.cpu().numpy()
        if self._config.network.linear_scales and len(days):
            # No outcome that agents learn from reaches into the days that are held out.
            days = days[days < days[held_out_from(len(days))] - self.longest_blocked()]
        return self.day_sampler(days.astype(np.int32), int(days[-1]) + 1, batch_size) if len(days) else None

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[MarketObservation, Outcomes]:
        assert self._outcomes is not None
        days = self._outcomes.days[moments]
        return MarketObservation(days, None, self._episode_times[:1], block), self._outcomes.of_rows(moments)

    def expected_outcomes(self, actor: Parameters, encoding: MarketEncoding) -> ExpectedOutcomes:
        return self.network.expected(actor, self.network.prepare_actor(actor, encoding.market, encoding.episode_time))
