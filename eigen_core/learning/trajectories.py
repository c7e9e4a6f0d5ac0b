"""Trajectory buffer of on-policy learners: it estimates advantages and deals out minibatches.

The tensors of a buffer are `[steps, agents * trajectories, ...]`, ordered by agent. A slot is the index of a step of a
trajectory in the first two dimensions, flattened: step * (agents * trajectories) + trajectory.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.task.replay import Column, unwritten

_ESTIMATES = {name: Column(torch.float32) for name in ("value", "advantage", "return")}
_STEPS = 128
"""Steps whose advantages are computed together."""
_LEAST_DEVIATION = 1e-8


class TrajectoryBuffer:
    """Trajectories of a group of agents, each an episode, or the part of one up to a time limit.

    On the CPU, steps that were never written take no memory. To fill it, write into its `columns`.

    Args:
        steps: most steps of a trajectory.
        lengths: number of steps of each trajectory, int64 `[agents, trajectories of an agent]`.
        stored: tensors stored for each step, by name: `reward`, float32; `terminal`, bool; and any others.

    Attributes:
        columns: the stored tensors and, float32, `value`, which has a row after the last step too, `advantage` and
            `return`.
    """

    def __init__(
        self, steps: int, lengths: NDArray[np.int64], stored: Mapping[str, Column], device: torch.device
    ) -> None:
        self._steps, self._by_agent = steps, lengths
        self._lengths = torch.tensor(lengths.ravel(), device=device)
        self.columns = {
            name: unwritten((steps + (name == "value"), lengths.size, *kind.shape), kind.dtype, device)
            for name, kind in {**stored, **_ESTIMATES}.items()
        }

    def of_agents(self, name: str) -> Tensor:
        """Return a view of a column, `[agents, trajectories, steps, ...]`; it is not contiguous."""
        column = self.columns[name]
        return column.view(len(column), *self._by_agent.shape, *column.shape[2:]).movedim(0, 2)

    def estimate_advantages(self, discount: float | Tensor, trace_decay: float) -> None:
        """Write the columns `advantage` (generalised advantage estimates) and `return` (advantage plus value).

        Schulman et al. 2016 (arXiv:1506.02438), equation 16, summed backwards in double precision. If a last step is
        not terminal, the value after it stands for all later rewards. Both columns are 0 beyond a trajectory's length.
        The bits of a trajectory depend neither on other trajectories nor on the number of threads.

        Args:
            discount: gamma, or one gamma for each trajectory, float64 `[agents * trajectories]`.
            trace_decay: lambda.
        """
        names = ("reward", "terminal", "value", "advantage", "return")
        rewards, terminal, values, advantages, returns = (self.columns[name] for name in names)
        following = torch.zeros(self._lengths.shape, dtype=torch.float64, device=self._lengths.device)
        for piece in reversed(list(_pieces(int(self._by_agent.max())))):
            beyond, ends, now = _beyond(self._lengths, piece), terminal[piece], values[piece].double()
            # One rounding in each operation: fused ones differ between the body and the end of a vector.
            errors = values[piece.start + 1 : piece.stop + 1].double().masked_fill_(ends, 0.0).mul_(discount)
            errors.add_(rewards[piece]).sub_(now).masked_fill_(beyond, 0.0)
            factors = torch.empty_like(errors)
            factors[:] = discount * trace_decay
            factors.masked_fill_(ends, 0.0)
            for error, factor in zip(reversed(errors.unbind()), reversed(factors.unbind()), strict=True):
                following = error.add_(following * factor)
            advantages[piece].copy_(errors)
            returns[piece].copy_(now.add_(errors).masked_fill_(beyond, 0.0))

    def normalise_advantages(self) -> None:
        """Shift and scale the advantages of each agent's steps to mean 0 and standard deviation 1, in place."""
        lengths, trajectories = self._lengths, self._by_agent.shape[1]
        advantages = self.columns["advantage"][: int(self._by_agent.max())]
        counts = _sum_by_agent(lengths.double(), trajectories).clamp_min_(1.0)
        total, variance = torch.zeros_like(counts), torch.zeros_like(counts)
        for _, numbers in _centred(advantages, lengths, torch.zeros_like(counts)):
            total.add_(_folded(numbers))
        mean = _sum_by_agent(total, trajectories) / counts
        for _, centred in _centred(advantages, lengths, mean):
            variance.add_(_folded(centred.square_()))
        deviation = (_sum_by_agent(variance, trajectories) / counts).sqrt_().clamp_min_(_LEAST_DEVIATION)
        for piece, centred in _centred(advantages, lengths, mean):
            advantages[piece].copy_(centred.div_(deviation))

    def minibatches(self, count: int, generators: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
        """Draw the minibatches of an epoch: each stored step is in exactly one of its agent's `count` minibatches.

        Minibatches of an agent differ by one step at most. Their shape does not depend on the trajectories' lengths.
        `generators` has one for each agent. The results are slots, int64 `[agents, count, batch]`, and which of them
        count, bool of this shape; the others are padding.
        """
        agents, trajectories = self._by_agent.shape
        dealt = np.zeros((agents, count, -(-self._steps * trajectories // count)), dtype=np.int64)
        counted = np.zeros(dealt.shape, dtype=np.bool_)
        numbers = np.arange(agents * trajectories).reshape(agents, trajectories)
        for agent, generator in enumerate(generators):
            each = zip(numbers[agent], self._by_agent[agent], strict=True)
            own = np.concatenate([np.arange(length) * numbers.size + number for number, length in each])
            dealt[agent] = own[:1] if len(own) else 0
            for index, part in enumerate(np.array_split(generator.permutation(own), count)):
                dealt[agent, index, : len(part)] = part
                counted[agent, index, : len(part)] = True
        device = self._lengths.device
        return torch.from_numpy(dealt).to(device), torch.from_numpy(counted).to(device)

    def pick(self, slots: Tensor, *names: str) -> dict[str, Tensor]:
        """Return the named columns at `slots`, int64 of any shape: `[*slots, ...]`."""
        return {name: self.columns[name].flatten(0, 1)[slots] for name in names}


def _pieces(steps: int) -> Iterator[slice]:
    return (slice(start, min(start + _STEPS, steps)) for start in range(0, steps, _STEPS))


def _beyond(lengths: Tensor, piece: slice) -> Tensor:
    """Return which steps of the slice `piece` are beyond a trajectory's length: bool `[steps, trajectories]`."""
    return torch.arange(piece.start, piece.stop, device=lengths.device)[:, None] >= lengths


def _centred(values: Tensor, lengths: Tensor, mean: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of steps, and their values minus `mean`, 0 beyond a trajectory: float64 `[steps, trajectories]`."""
    for piece in _pieces(len(values)):
        yield piece, values[piece].double().sub_(mean).masked_fill_(_beyond(lengths, piece), 0.0)


def _folded(rows: Tensor) -> Tensor:
    """Return the sum over the first dimension, added by halves; the memory of `rows` is overwritten."""
    while len(rows) > 1:
        half = (len(rows) + 1) // 2
        rows[: len(rows) - half].add_(rows[half:])
        rows = rows[:half]
    return rows[0]


def _sum_by_agent(totals: Tensor, trajectories: int) -> Tensor:
    """Return for each trajectory the sum over its agent's trajectories: float64 `[agents * trajectories]`."""
    first, *others = totals.view(-1, trajectories).unbind(1)
    return sum(others, start=first).repeat_interleave(trajectories)
