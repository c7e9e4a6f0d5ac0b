"""Twin delayed deep deterministic policy gradient: DDPG with two critics, a delayed policy and smoothed targets.

Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1. What is not here is in `ddpg`: the lower of two critics (section
4.2) and the delay (section 5.2).
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from eigen_core.config import Config
from eigen_core.learners.batches import BatchPlan
from eigen_core.learners.ddpg import DdpgLearner
from eigen_core.networks import Heads, Policy
from eigen_core.task import Encoded, Observed


class Td3Learner(DdpgLearner[Observed, Encoded]):
    """Implements `Learner`."""

    usual_policy_delay: ClassVar[int] = 2

    @staticmethod
    def heads(config: Config) -> Heads:
        """Return two critics of actions and a deterministic actor."""
        return Heads(critics=2, return_steps=config.learner.n_step)

    def target_actions(self, plan: BatchPlan) -> Callable[[Policy], Tensor]:
        """Return the target actor's actions with clipped noise: similar actions have similar values (section 5.3)."""
        draw, clip = plan.noise(self._config.seed, "target noise"), self._learner.target_noise_clip

        def smoothed(policy: Policy) -> Tensor:
            actions = policy.mode
            noise = draw(actions).mul_(self._learner.target_noise).clamp_(-clip, clip)
            return self._task.box.explore(actions, noise)

        return smoothed
