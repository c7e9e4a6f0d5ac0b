"""The task `portfolio`: every day agents give each asset a score, which decides its share of the equity (weight)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.market.panel import Panel
from eigen_core.networks.actions import portfolio_actions
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.layout import Parameters
from eigen_core.networks.policies import Heads
from eigen_core.task.interface import Rollout
from eigen_core.task.linear_start import linear_start
from eigen_core.task.panel import EncodedEpisodes, PanelTask
from eigen_core.task.transitions import rows_of
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.excess import mean_excess, newey_west_lags
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.orders import PERCENT
from eigen_core.trading.portfolio import Rebalancing, equal_weights_like, move_scores, smooth_scores, target_weights
from eigen_core.trading.prices import Prices


@dataclass(frozen=True)
class ScoreDecisions:
    """Decisions and the scores that result.

    Attributes:
        scores: float32 `[agents, ..., assets]`, scores after the decision.
        observed: float16 `[agents, ..., assets, values]`, as agents observe: scores before it / `portfolio.max_score`.
        stored: float32 `[agents, ..., assets, values]`, the actions as the policy stores them.
    """

    scores: Tensor
    observed: Tensor
    stored: Tensor


def decide_scores(
    network: AgentNetwork,
    actor: Parameters,
    prepared: Tensor,
    scores: Tensor | None,
    noise: Tensor | None,
    *,
    ensemble: bool = False,
) -> ScoreDecisions:
    """Let agents decide after the close of one day.

    Args:
        prepared: result of `AgentNetwork.prepare_actor` for the day, float32 `[agents, ..., assets, width]`.
        scores: float32 `[agents, ..., assets]`, before the decision. None on the first day of an episode: agents
            observe scores of 0, and their decision sets the scores they want at once, whatever its speeds.
        noise: see `Policy.play`.
        ensemble: the agents share one portfolio: their actions are averaged, and `scores` are the same for all.
    """
    before = prepared.new_zeros(prepared.shape[:-1]) if scores is None else scores.expand(prepared.shape[:-1])
    observed = (before / network.box.high[0]).half()[..., None][..., : network.portfolio_values]
    policy = network.policy(actor, prepared, observed.float() if network.portfolio_values else None)
    actions, stored = policy.play(noise)
    if ensemble:
        actions, before = actions.mean(dim=0, keepdim=True), before[:1]
    wanted, speeds = actions.unbind(-1)
    if scores is None:
        speeds = torch.ones_like(speeds)
    return ScoreDecisions(move_scores(before, wanted, speeds), observed, stored)


def episode_scores(network: AgentNetwork, actor: Parameters, prepared: Tensor, noise: Tensor | None) -> ScoreDecisions:
    """Let agents decide on all days of episodes; differentiable.

    `prepared` is the result of `AgentNetwork.prepare_actor`, float32 `[agents, episodes, days, assets, width]`; `noise`
    (see `Policy.play`; None: no noise) and the result have the same dimensions but the last.
    """
    if not network.portfolio_values:
        policy = network.policy(actor, prepared.flatten(1, 2), None)
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        actions, stored = (part.reshape(*prepared.shape[:-1], -1) for part in played)
        observed = torch.empty((*prepared.shape[:-1], 0), dtype=torch.float16, device=prepared.device)
        return ScoreDecisions(smooth_scores(*actions.unbind(-1)), observed, stored)
    days: list[ScoreDecisions] = []
    for day, of_day in enumerate(prepared.unbind(2)):
        before = days[-1].scores if days else None
        days.append(decide_scores(network, actor, of_day, before, None if noise is None else noise[:, :, day]))
    names = ("scores", "observed", "stored")
    return ScoreDecisions(**{name: torch.stack([getattr(day, name) for day in days], dim=2) for name in names})


class PortfolioTask(PanelTask):
    """Implements `Task` and `DifferentiableGrowth`.

    After the close of each of an episode's `trading.trading_bars` days an agent decides on a score and a speed for each
    asset; its portfolio's scores move towards these by the speeds (`move_scores`). It observes the market and, if
    `trading.observe_portfolio`, its portfolio's scores. The reward is 100 times the logarithm of the growth of its
    account from the fill of the decision to the fill of the next (`Rebalancing.growth`).

    Raises:
        InputError: `trading.delisting_loss` is None, portfolios may sell short, and an asset has no price on a day.
    """

    def __init__(self, config: Config, panel: Panel, device: torch.device, heads: Heads) -> None:
        prices = Prices.of_panel(panel, device)
        start = linear_start(panel, prices, config)
        super().__init__(config, panel, device, heads, portfolio_actions(config, device), start)
        self._tradable = prices.tradable
        self._rebalancing = Rebalancing.of(prices, config.trading)
        if config.trading.delisting_loss is None and config.portfolio.short > 0.0 and not self._tradable.all():
            day, asset = (~self._tradable).nonzero()[0].tolist()
            raise InputError(
                "trading.delisting_loss is empty, as in runs of earlier versions of Eigen: portfolios can then sell "
                f"short (portfolio.short) only if all symbols trade every day. {panel.symbols[asset]} does not trade "
                f"on {panel.dates[day]}: results would be wrong. Train a new run."
            )

    @staticmethod
    def steps(config: Config) -> int:
        return config.trading.trading_bars

    @torch.no_grad()
    def play(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> tuple[Rollout, Tensor]:
        """Play episodes; return also the target weights, float64 `[agents, episodes, days, assets]`."""
        encoded = EncodedEpisodes(self.network, weights, starts, self._episode_times[: self.episode_steps])
        decided = episode_scores(self.network, encoded.actor, encoded.of_all_steps(), noise)
        steps = torch.arange(self.episode_steps, device=self._device)
        days = torch.tensor(starts, device=self._device)[..., None] + steps
        tradable, table = self._tradable[days], self._rebalancing.on(days)
        targets = target_weights(decided.scores.double(), tradable, self._config.portfolio.short)
        rewards, turnover = table.growth(targets)
        # Growth from fill to fill, of the portfolio and of equal weights of the same exposure.
        returns, market = (
            torch.exp(growth / PERCENT) for growth in (rewards, table.growth(equal_weights_like(targets, tradable))[0])
        )
        counts = {
            "turnover": turnover.sum(-1),
            "exposure": targets.sum(-1).mean(-1),
            "largest_weight": targets.amax(-1).mean(-1),
            "first_day": days[..., 0].double(),
            "excess_of_days": returns - market,
        }
        rows = None
        if record:
            stored = decided.stored.to(self.columns["action"].dtype)
            columns = (days[..., 0], decided.observed, stored, rewards.float())
            rows = rows_of(*(column[:, : starts.shape[1] - fixed].flatten(0, 1) for column in columns))
        of_episodes = {name: values.flatten(0, 1).cpu().numpy() for name, values in counts.items()}
        return Rollout(rewards.cpu().numpy().sum(axis=-1), of_episodes, rows), targets

    def decisions(self, weights: Tensor, starts: NDArray[np.int64]) -> tuple[Tensor, Excess | None]:
        rollout, targets = self.play(weights, starts)
        return targets.flatten(0, 1), self.excess(rollout)

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        return {name: float(rollout.counts[name].mean()) for name in ("turnover", "exposure", "largest_weight")}

    def excess(self, rollout: Rollout) -> Excess | None:
        """Return the excess return per year over portfolios of equal weights and the same exposure."""
        first, gained = rollout.counts["first_day"].astype(np.int64), rollout.counts["excess_of_days"]
        year = periods_per_year(self.panel.dates, self._config.account)
        return mean_excess(gained, np.ones_like(gained), first, newey_west_lags(self.episode_steps), year)

    @property
    def growth_days(self) -> Sequence[range]:
        # The reward of a decision ends with the fill of the next day's decision.
        after = fill_offset(self._config.trading) + 1
        return [range(piece.start, piece.stop - after) for piece in self.panel.observed(self._config)]

    def growth(self, weights: Tensor, first_day: int, days: int) -> tuple[Tensor, Tensor]:
        critic = self.critic_layout.views(weights[:, : self.critic_layout.size])
        actor = self.actor_layout.views(weights[:, self.critic_layout.size :])
        market = self.network.encode_block(critic, first_day, days)
        prepared = self.network.prepare_actor(actor, market, self._episode_times[:1])
        scores = episode_scores(self.network, actor, prepared[:, None], None).scores[:, 0]
        stretch = slice(first_day, first_day + days)
        targets = target_weights(scores, self._tradable[stretch], self._config.portfolio.short)
        growth, turnover = self._rebalancing.on(stretch, torch.float32).growth(targets)
        return growth, turnover.detach()
