"""Twin delayed deep deterministic policy gradient: DDPG with two critics, a delayed policy and smoothed targets.

Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1. What is not here is in `ddpg`: the lower of two critics (section
4.2) and the delay (section 5.2).
"""

from typing import ClassVar

from torch import Tensor

from eigen_core.config import Config, Td3Config
from eigen_core.learners.ddpg import DdpgLearner
from eigen_core.learners.settings import learner_settings
from eigen_core.networks import Heads, Policy
from eigen_core.task import Encoded, Observed


class Td3Learner(DdpgLearner[Observed, Encoded]):
    """Implements `Learner`."""

    noise_purposes: ClassVar[tuple[str, ...]] = ("target noise",)
    settings = Td3Config

    @staticmethod
    def heads(config: Config) -> Heads:
        """Return two critics of actions and a deterministic actor."""
        return Heads(critics=2, return_steps=learner_settings(config, Td3Config).n_step)

    def target_actions(self, policy: Policy, *noise: Tensor) -> Tensor:
        """Return the target actor's actions with clipped noise: similar actions have similar values (section 5.3)."""
        learner = learner_settings(self._config, Td3Config)
        (drawn,), clip = noise, learner.target_noise_clip
        return self._task.box.explore(policy.mode, (drawn * learner.target_noise).clamp_(-clip, clip))
