"""Growth of an account with a gradient, which a task can offer if agents do not change what happens."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class DifferentiableGrowth(Protocol):
    """The rewards of a stretch of days are a differentiable function of an agent's weights."""

    @property
    def growth_days(self) -> range:
        """The training days on which agents can decide, and whose rewards are known before the training days end."""

    def growth(self, weights: Tensor, first_day: int, days: int) -> tuple[Tensor, Tensor]:
        """Return what agents without noise reach in a stretch of days that begins as an episode does.

        Args:
            weights: float32 `[agents, parameters]`; the result can be differentiated by them.
            first_day: the first day.
            days: how many.

        Returns:
            Rewards, and what is traded as a share of the equity, without a gradient: float32 `[agents, days]` each.
        """
