"""Advantages and returns of trajectories, in place.

Sums go step after step in double precision and each trajectory is computed by itself: the bits of a trajectory do not
depend on those beside it, nor on the number of threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.trajectories.columns import ADVANTAGE, RETURN, REWARD, TERMINAL, VALUE

_LEAST_DEVIATION = 1e-8


@dataclass(frozen=True)
class Scan:
    """Memory for passes over the steps of trajectories.

    Attributes:
        numbers: float64 `[4, trajectories]`.
        beyond: bool `[trajectories]`.
    """

    numbers: Tensor
    beyond: Tensor

    @classmethod
    def allocate(cls, trajectories: int, device: torch.device) -> "Scan":
        """Return memory for so many trajectories."""
        return cls(
            torch.zeros((4, trajectories), dtype=torch.float64, device=device),
            torch.zeros(trajectories, dtype=torch.bool, device=device),
        )

    def part(self, trajectories: slice) -> "Scan":
        """The memory of consecutive trajectories."""
        return Scan(self.numbers[:, trajectories], self.beyond[trajectories])


def estimate_advantages(
    columns: Mapping[str, Tensor], lengths: Tensor, longest: int, discount: float, trace_decay: float, scan: Scan
) -> None:
    """Write the generalised advantage estimates of trajectories, and their sums with the values.

    Schulman et al. 2016 (arXiv:1506.02438), equation 16, summed backwards. After a terminal step nothing follows. A
    trajectory whose last step is not terminal was truncated: what follows is estimated by the value of the observation
    after that step.

    Args:
        columns: `reward`, float32, and `terminal`, bool, `[steps, trajectories]`; `value`, float32 `[steps + 1,
            trajectories]`, of the observation before each step and after the last one; `advantage` and `return`,
            float32 `[steps, trajectories]`, which are written up to the longest length, with 0 beyond a trajectory's.
        lengths: int64 `[trajectories]`, steps of each; what the others hold is not used.
        longest: the largest of them.
        discount: gamma.
        trace_decay: lambda; 1: returns less values, 0: one-step temporal-difference errors.
        scan: memory for as many trajectories.
    """
    later, following, value, reward = scan.numbers
    later.zero_()
    for step in reversed(range(longest)):
        ends = columns[TERMINAL][step]
        torch.le(lengths, step, out=scan.beyond)
        reward.copy_(columns[REWARD][step])
        value.copy_(columns[VALUE][step])
        following.copy_(columns[VALUE][step + 1]).masked_fill_(ends, 0.0).mul_(discount)
        # One rounding in each operation: fused ones differ between the body and the end of a vector.
        later.masked_fill_(ends, 0.0).mul_(discount * trace_decay)
        later.add_(following).add_(reward).sub_(value).masked_fill_(scan.beyond, 0.0)
        columns[ADVANTAGE][step].copy_(later)
        columns[RETURN][step].copy_(value.add_(later).masked_fill_(scan.beyond, 0.0))


def normalise_by_agent(values: Tensor, lengths: Tensor, trajectories: int, scan: Scan) -> None:
    """Shift and scale each agent's values to mean 0 and standard deviation 1, in place.

    Args:
        values: float32 `[steps, agents * trajectories]`, agents first; 0 beyond a trajectory's length, and left so.
        lengths: int64 `[agents * trajectories]`, steps of each.
        trajectories: trajectories of an agent.
        scan: memory for as many trajectories.
    """
    mean, deviation, value, _ = scan.numbers
    counts = lengths.view(-1, trajectories).sum(1, keepdim=True).clamp_min(1)
    _sum_of_steps(values, value, mean)
    _share_by_agent(mean, counts)
    deviation.zero_()
    for step in range(len(values)):
        _centre(values, step, lengths, mean, value, scan.beyond)
        deviation.add_(value.mul_(value))
    _share_by_agent(deviation, counts)
    deviation.sqrt_().clamp_min_(_LEAST_DEVIATION)
    for step in range(len(values)):
        _centre(values, step, lengths, mean, value, scan.beyond)
        values[step].copy_(value.div_(deviation))


def _sum_of_steps(values: Tensor, value: Tensor, total: Tensor) -> None:
    total.zero_()
    for step in range(len(values)):
        total.add_(value.copy_(values[step]))


def _centre(values: Tensor, step: int, lengths: Tensor, mean: Tensor, value: Tensor, beyond: Tensor) -> None:
    """Write a step's values less the mean, 0 beyond a trajectory's length, into `value`."""
    torch.le(lengths, step, out=beyond)
    value.copy_(values[step]).sub_(mean).masked_fill_(beyond, 0.0)


def _share_by_agent(totals: Tensor, counts: Tensor) -> None:
    """Replace the totals `[trajectories]` by the sum over their agent's, divided by its count `[agents, 1]`."""
    of_agents = totals.view(len(counts), -1)
    first = of_agents[:, :1]
    for other in of_agents[:, 1:].unbind(1):
        first.add_(other[:, None])
    first.div_(counts)
    of_agents.copy_(first.expand_as(of_agents))
