"""What portfolios of weights need of memory: each function follows the code that it is about, as in `market_needs`."""

from functools import cached_property

import torch

from eigen_core.needs import DOUBLE, HALF, SINGLE, Kept, Operation
from eigen_core.networks import AssetActions, portfolio_actions
from eigen_core.networks.layout import FEWEST_ROWS
from eigen_core.task.market_needs import MarketNeeds

_ACCOUNT_VALUES = 7
_GROWTH_VALUES = 30


class PortfolioNeeds(MarketNeeds):
    """Implements `TaskNeeds` and `GrowthNeeds`: as the market, but for actions, episodes and the account."""

    @cached_property
    def _actions(self) -> AssetActions:
        return portfolio_actions(self.config, torch.device("cpu"))

    @property
    def episode_steps(self) -> int:
        """Days of an episode."""
        return self.config.trading.trading_days

    @property
    def kept(self) -> list[Kept]:
        """The panel, what becomes of weights, and what the encoder keeps."""
        panel, _, _, *encoder = super().kept
        cells, traded = self.panel.days * self.panel.columns, self.panel.days * self.panel.assets
        how = "Returns from fill to fill of the tradable columns, 8 bytes each, and which can be traded on each day."
        return [panel, Kept("prices", how, (DOUBLE + 3) * traded + cells), *encoder]

    def _play(self, agents: int, episodes: int, recorded: int) -> int:  # noqa: ARG002 - decisions are kept of all
        """The most at once while agents decide in what is encoded, and while their accounts are kept."""
        count, days = agents * episodes, self.episode_steps
        whole = self._agent.actor(count, days)
        cells = count * days * self.panel.assets
        decided = cells * (SINGLE * (1 + self._actions.values) + HALF * self._actions.portfolio_values)
        if self._actions.portfolio_values:
            day = self._agent.actor(count, 1)
            acting = max(2 * decided, decided + 4 * day.hidden + day.product)
        else:
            acting = max(2 * whole.hidden + whole.product, 12 * SINGLE * cells)
        rows, acting = DOUBLE * count * days, max(acting, self._prepare(agents, days))
        return rows + max(whole.hidden + acting, decided + _ACCOUNT_VALUES * DOUBLE * cells)

    def growth(self, agents: int, days: int) -> Operation:
        """`PortfolioTask.growth`, with its backward pass."""
        encode, act = self._agent.encode_block(agents, days), self._agent.act(agents, days)
        account = _GROWTH_VALUES * SINGLE * agents * days * self.panel.assets
        # Where scores are observed, a day is computed by itself: what is prepared and what they add, and two layers of
        # rows filled up.
        observing = 0
        if self._actions.portfolio_values:
            filled_up = max(FEWEST_ROWS / self.panel.assets, 1.0)
            observing = int(self._agent.actor(agents, days).hidden * (2.0 * filled_up - 1.0))
        remembered = encode.remembered + act.remembered + observing + account
        result = 2 * SINGLE * agents * days
        forward = max(encode.forward, encode.result + remembered)
        return Operation(result, forward, forward, remembered, max(forward, encode.backward))
