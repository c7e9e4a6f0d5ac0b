"""The market as a task: agents trade episodes of a panel's days."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.market.panel import Panel, PanelFacts
from eigen_core.networks import Heads, market_actions
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import Parameters
from eigen_core.networks.outcomes import ExpectedOutcomes
from eigen_core.task.interface import Rollout, joined_counts
from eigen_core.task.market_outcomes import OutcomeTable, sale_targets
from eigen_core.task.market_rollouts import Evaluator
from eigen_core.task.market_transitions import rows_of, stored_steps
from eigen_core.task.outcomes import Outcomes
from eigen_core.task.panel_task import BlockSampler, MarketEncoding, MarketObservation, PanelTask
from eigen_core.trading import EpisodeSummary, Prices, excess_of, market_gains
from eigen_core.trading.orders import sum_of_day

_COUNTED = ("trades", "wins", "idle_days", "fees")


class MarketTask(PanelTask):
    """Implements `Task`.

    Args:
        config: trading rules, networks, days.
        panel: the market.
        device: where everything is computed.
        heads: what the learner needs of the networks.
    """

    def __init__(self, config: Config, panel: Panel, device: torch.device, heads: Heads) -> None:
        super().__init__(config, panel, device, heads, market_actions(config, device))
        self.evaluator = Evaluator(self.network, Prices.of_panel(panel, device), config, device)
        self._decisions = torch.arange(config.trading.trading_days, device=device)
        self._market_gains = market_gains(self.evaluator.prices, config.trading)
        self._outcomes = self._outcome_table(heads.outcomes) if heads.outcomes else None

    @staticmethod
    def steps(config: Config) -> int:
        """Return the days of an episode that are stored; see `ReplayConfig.settlement_days`."""
        return stored_steps(config)

    @staticmethod
    def cautions(config: Config, facts: PanelFacts) -> Sequence[str]:
        """Say where so few assets are traded that agents can hardly choose among them."""
        held, purchases = config.trading.holding_days, config.trading.purchases_per_day
        judged = PanelTask.cautions(config, facts)
        if facts.assets == 1 or facts.assets > held * purchases:
            return judged
        if purchases == 1:
            often, hold = "one purchase a day", "Hold for fewer days than there are assets"
        else:
            often = f"{purchases:,} purchases a day (trading.purchases_per_day)"
            hold = "Buy fewer a day or hold for fewer days, so that these two multiplied are below the number of assets"
        return (
            *judged,
            f"With {often} and positions of up to {held:,} days (trading.holding_days), any of {facts.assets:,} assets "
            f"that is free is soon bought: agents can choose when to buy, hardly what. {hold}, or trade more assets.",
        )

    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        """Play one episode for each agent and start; see `Task.roll_out`."""
        played = self.evaluator.roll_out(weights, starts, noise, record, fixed)
        counts = self.counts(starts, played.summary)
        return Rollout(
            played.rewards,
            counts,
            None if played.episodes is None else rows_of(played.episodes, self.columns["action"].dtype),
        )

    def decisions(self, weights: Tensor, starts: NDArray[np.int64]) -> tuple[Tensor, Excess | None]:
        """Return the assets that each decision buys, if any, each with the same share; see `PanelTask.decisions`."""
        summary = self.evaluator.roll_out(weights, starts).summary
        bought = summary.asset[..., None] == torch.arange(self.panel.assets, device=summary.asset.device)
        shares = bought.sum(dim=2) / self._config.trading.purchases_per_day
        return shares, self._excess_of(self.counts(starts, summary))

    def counts(self, starts: NDArray[np.int64], summary: EpisodeSummary) -> dict[str, NDArray[np.float64]]:
        """Return what is counted in episodes that start on days, `[agents, episodes]`: see `Rollout`."""
        days = torch.tensor(starts, device=self._market_gains.device).reshape(-1, 1) + self._decisions
        day, fills = days.unsqueeze(-1), self.evaluator.prices.fills(self._config.trading)
        market = self._market_gains[day, fills.due_after(day, summary.asset.clamp(min=0), summary.exit_offset)]
        beyond = sum_of_day(torch.where(summary.bought, summary.gain - market, 0.0))
        counted = {name: getattr(summary, name) for name in _COUNTED}
        counted |= {"first_day": days[:, 0], "excess_of_days": beyond, "trades_of_days": summary.bought.sum(dim=-1)}
        return {name: values.cpu().numpy().astype(np.float64) for name, values in counted.items()}

    def statistics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return means over the episodes: trades, share of trades with a gain, days without a position, fees."""
        counts = joined_counts(rollouts)
        return {
            "trades": float(counts["trades"].mean()),
            "win_rate": float(counts["wins"].sum() / max(counts["trades"].sum(), 1.0)),
            "idle_days": float(counts["idle_days"].mean()),
            "fees": float(counts["fees"].mean()),
        }

    def excess(self, rollouts: Sequence[Rollout]) -> Excess | None:
        """Return what the trades of rollouts gained beyond the market; None with fewer than two trades or assets."""
        return self._excess_of(joined_counts(rollouts))

    def _excess_of(self, counts: Mapping[str, NDArray[np.float64]]) -> Excess | None:
        if self.panel.assets == 1:
            # The market is this asset: every trade gains what the market does.
            return None
        first, gained, traded = (counts[name] for name in ("first_day", "excess_of_days", "trades_of_days"))
        return excess_of(gained, traded, first.astype(np.int64), self._config.trading.holding_days)

    def _outcome_table(self, targets: int) -> OutcomeTable:
        days = range(self.training_starts.start, self.panel.splits.train.stop)
        trading, prices = self._config.trading, self.evaluator.prices
        return OutcomeTable.of(prices, trading, days, sale_targets(trading, targets, prices.close.device))

    def outcome_sampler(self, batch_size: int) -> BlockSampler | None:
        """Return what draws batches of different days, as rows of the table of outcomes."""
        assert self._outcomes is not None
        days = self._outcomes.days
        return self.day_sampler(np.asarray(days, dtype=np.int32), days.stop, batch_size)

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[MarketObservation, Outcomes]:
        """Return what is observed on days, int64 `[agents, batch]`, and what each purchase would have come to."""
        assert self._outcomes is not None
        days = moments + self._outcomes.first_day
        return MarketObservation(days, None, self._episode_times[:1], block), self._outcomes.of_rows(moments)

    def expected_outcomes(self, actor: Parameters, encoding: MarketEncoding) -> ExpectedOutcomes:
        """Return what the actor expects of the purchases."""
        return self.network.expected(actor, self.network.prepare_actor(actor, encoding.market, encoding.episode_time))
