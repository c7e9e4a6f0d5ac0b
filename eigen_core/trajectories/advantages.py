"""Advantages and returns of trajectories, in place.

Sums are of double precision and go over the steps of each trajectory by itself: the bits of a trajectory do not depend
on those beside it, nor on the number of threads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.trajectories.columns import ADVANTAGE, RETURN, REWARD, TERMINAL, VALUE

_STEPS = 128
"""Steps that are computed together."""
_LEAST_DEVIATION = 1e-8


@dataclass(frozen=True)
class Scratch:
    """Memory for a piece of consecutive steps.

    Attributes:
        numbers: float64 `[3, steps of a piece, trajectories]`.
        beyond: bool `[steps of a piece, trajectories]`.
        sums: float64 `[3, trajectories]`.
        left: int64 `[trajectories]`.
        steps: int64 `[steps of a piece, 1]`, 0, 1, ...
    """

    numbers: Tensor
    beyond: Tensor
    sums: Tensor
    left: Tensor
    steps: Tensor

    @classmethod
    def allocate(cls, trajectories: int, device: torch.device) -> "Scratch":
        """Return memory for so many trajectories."""
        shape = (_STEPS, trajectories)
        return cls(
            torch.zeros((3, *shape), dtype=torch.float64, device=device),
            torch.zeros(shape, dtype=torch.bool, device=device),
            torch.zeros((3, trajectories), dtype=torch.float64, device=device),
            torch.zeros(trajectories, dtype=torch.int64, device=device),
            torch.arange(_STEPS, device=device)[:, None],
        )

    def part(self, trajectories: slice) -> "Scratch":
        """The memory of consecutive trajectories."""
        return Scratch(
            self.numbers[..., trajectories],
            self.beyond[:, trajectories],
            self.sums[:, trajectories],
            self.left[trajectories],
            self.steps,
        )

    def steps_beyond(self, lengths: Tensor, piece: slice) -> Tensor:
        """Return which steps of a piece are beyond a trajectory's length: bool `[steps, trajectories]`."""
        torch.sub(lengths, piece.start, out=self.left)
        count = piece.stop - piece.start
        return torch.ge(self.steps[:count], self.left, out=self.beyond[:count])


def estimate_advantages(
    columns: Mapping[str, Tensor],
    lengths: Tensor,
    longest: int,
    discount: float | Tensor,
    trace_decay: float,
    scratch: Scratch,
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
        discount: gamma, or each trajectory's own, float64 `[trajectories]`.
        trace_decay: lambda; 1: returns less values, 0: one-step temporal-difference errors.
        scratch: memory for as many trajectories.
    """
    later, product, _ = scratch.sums
    later.zero_()
    for piece in reversed(list(_pieces(longest))):
        beyond = scratch.steps_beyond(lengths, piece)
        errors, factors, values = scratch.numbers[:, : len(beyond)]
        ends = columns[TERMINAL][piece]
        values.copy_(columns[VALUE][piece])
        errors.copy_(columns[VALUE][piece.start + 1 : piece.stop + 1]).masked_fill_(ends, 0.0).mul_(discount)
        # One rounding in each operation: fused ones differ between the body and the end of a vector.
        errors.add_(factors.copy_(columns[REWARD][piece])).sub_(values).masked_fill_(beyond, 0.0)
        factors[:] = discount * trace_decay
        factors.masked_fill_(ends, 0.0)
        following = later
        for error, factor in zip(reversed(errors.unbind()), reversed(factors.unbind()), strict=True):
            following = error.add_(torch.mul(following, factor, out=product))
        later.copy_(following)
        columns[ADVANTAGE][piece].copy_(errors)
        columns[RETURN][piece].copy_(values.add_(errors).masked_fill_(beyond, 0.0))


def normalise_by_agent(values: Tensor, lengths: Tensor, trajectories: int, scratch: Scratch) -> None:
    """Shift and scale each agent's values to mean 0 and standard deviation 1, in place.

    Args:
        values: float32 `[steps, agents * trajectories]`, agents first; 0 beyond a trajectory's length, and left so.
        lengths: int64 `[agents * trajectories]`, steps of each.
        trajectories: trajectories of an agent.
        scratch: memory for as many trajectories.
    """
    mean, deviation, counts = scratch.sums
    _sum_by_agent(counts.copy_(lengths), trajectories)
    counts.clamp_min_(1.0)
    mean.zero_()
    total = deviation.zero_()
    for _, numbers in _centred(values, lengths, mean, scratch):
        total.add_(_folded(numbers))
    _sum_by_agent(total, trajectories)
    torch.div(total, counts, out=mean)
    deviation.zero_()
    for _, centred in _centred(values, lengths, mean, scratch):
        deviation.add_(_folded(centred.mul_(centred)))
    _sum_by_agent(deviation, trajectories)
    deviation.div_(counts).sqrt_().clamp_min_(_LEAST_DEVIATION)
    for piece, centred in _centred(values, lengths, mean, scratch):
        values[piece].copy_(centred.div_(deviation))


def _pieces(steps: int) -> Iterator[slice]:
    return (slice(start, min(start + _STEPS, steps)) for start in range(0, steps, _STEPS))


def _centred(values: Tensor, lengths: Tensor, mean: Tensor, scratch: Scratch) -> Iterator[tuple[slice, Tensor]]:
    """Yield pieces and their values less the mean, 0 beyond a trajectory's length: float64 `[steps, trajectories]`."""
    for piece in _pieces(len(values)):
        beyond = scratch.steps_beyond(lengths, piece)
        yield piece, scratch.numbers[0, : len(beyond)].copy_(values[piece]).sub_(mean).masked_fill_(beyond, 0.0)


def _folded(rows: Tensor) -> Tensor:
    """Add up rows, which are overwritten, by halves; return the sum as the first of them."""
    while len(rows) > 1:
        half = (len(rows) + 1) // 2
        rows[: len(rows) - half].add_(rows[half:])
        rows = rows[:half]
    return rows[0]


def _sum_by_agent(totals: Tensor, trajectories: int) -> None:
    """Replace the totals of trajectories by those of their agents, in place."""
    by_agent = totals.view(-1, trajectories)
    first, *others = by_agent.unbind(1)
    for other in others:
        first.add_(other)
    for other in others:
        other.copy_(first)
