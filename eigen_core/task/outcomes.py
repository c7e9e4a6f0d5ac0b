"""Outcomes of all alternatives, which a task can offer if agents do not change what happens."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import Parameters
from eigen_core.networks.outcomes import ExpectedOutcomes
from eigen_core.task.interface import BatchSampler


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of each alternative of a moment, taken or not: `[agents, batch, candidates, settings]`.

    Attributes:
        rewards: float32, in the units of the task's rewards.
        shares: float32, of the longest time, for which the candidate would have been blocked.
        known: bool `[agents, batch, candidates]`, it could have been taken and its end is known.
    """

    rewards: Tensor
    shares: Tensor
    known: Tensor


@runtime_checkable
class KnownOutcomes(Protocol):
    """At each step one of several candidates may be taken, with one of some settings, and is blocked until it ends.

    As nothing else depends on that, what every candidate would have come to with every setting is known without being
    played: `Heads.outcomes` says of how many settings.
    """

    def outcome_sampler(self, batch_size: int) -> BatchSampler | None:
        """Return what draws different moments of the training part; None while there are too few for a batch."""

    def outcomes(self, moments: Tensor, block: FirstDay) -> tuple[Any, Outcomes]:
        """Return what is observed at moments, int64 `[agents, batch]`, drawn from a block, and what would have come."""

    def expected_outcomes(self, actor: Parameters, encoding: Any) -> ExpectedOutcomes:  # noqa: ANN401 - the task's own
        """Return what the actor expects of the alternatives."""
