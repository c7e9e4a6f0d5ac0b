"""What portfolios of weights need of memory: each function follows the code that it is about, as in `market_needs`."""

from functools import cached_property

import torch

from eigen_core.needs import DOUBLE, HALF, SINGLE, Kept
from eigen_core.networks import AssetActions, portfolio_actions
from eigen_core.task.market_needs import MarketNeeds

_ACCOUNT_VALUES = 9


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
        panel, _, *encoder = super().kept
        cells, traded = self.panel.days * self.panel.columns, self.panel.days * self.panel.assets
        how = "Returns from fill to fill of the tradable columns, 8 bytes each, and which can be traded on each day."
        return [panel, Kept("prices", how, (DOUBLE + 3) * traded + cells), *encoder]

    def roll_out(self, agents: int, episodes: int, *, shared: bool, recorded: bool) -> int:  # noqa: ARG002
        """The most at once in `PortfolioTask.roll_out`."""
        days = self.episode_steps
        actor = self._agent.actor(agents, days)
        whole = actor.hidden * episodes
        cells = agents * episodes * days * self.panel.assets
        preparing = whole + self._prepare(agents if shared else 1, agents * episodes)
        decided = cells * (SINGLE * (1 + self._actions.values) + HALF * self._actions.portfolio_values)
        if self._actions.portfolio_values:
            day = self._agent.actor(agents * episodes, 1)
            acting = max(2 * decided, decided + 4 * day.hidden + day.product)
        else:
            product = self._agent.actor(agents * episodes, days).product
            acting = max(3 * whole, 2 * whole + product, 12 * SINGLE * cells)
        return max(preparing, whole + acting, decided + _ACCOUNT_VALUES * DOUBLE * cells)
