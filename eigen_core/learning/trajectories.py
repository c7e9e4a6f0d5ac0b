"""Trajectory buffer of on-policy learners: it is allocated once, estimates advantages and deals out minibatches.

The tensors of a buffer are `[steps, agents * trajectories, ...]`, ordered by agent: consecutive agents are a slice of
the second dimension. A slot is the index of a step of a trajectory in the first two dimensions, flattened: step *
(agents * trajectories) + trajectory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.task.replay import Column, unwritten

REWARD, TERMINAL = "reward", "terminal"
VALUE, ADVANTAGE, RETURN = "value", "advantage", "return"
ALL_AGENTS = slice(None)

_ESTIMATES = {name: Column(torch.float32) for name in (VALUE, ADVANTAGE, RETURN)}
_STEPS = 128
"""Steps whose advantages are computed together."""
_LEAST_DEVIATION = 1e-8


@dataclass(frozen=True)
class Minibatches:
    """The steps of each agent, in a random order, cut into minibatches.

    Attributes:
        slots: indices of steps in the buffer, int64 `[agents, minibatches, batch]`.
        counted: bool `[agents, minibatches, batch]`; slots where it is false are padding.
    """

    slots: Tensor
    counted: Tensor


class TrajectoryBuffer:
    """Trajectories of all agents, each an episode, or the part of one up to a time limit.

    Memory is allocated once; on the CPU, steps that were never written take no memory. To fill it, write into the views
    that `column` and `by_agent` return, and call `finish`.

    Args:
        steps, trajectories: most steps of a trajectory, and number of trajectories of each agent.
        columns: tensors stored for each step, by name: `reward`, float32; `terminal`, bool; and any others, besides
            `value`, which has a row after the last step too, `advantage` and `return`.

    Attributes:
        lengths: number of stored steps of each trajectory, int64 `[agents * trajectories]`, on the host.

    Raises:
        MemoryError, torch.OutOfMemoryError: memory is short.
    """

    def __init__(
        self,
        steps: int,
        agents: int,
        trajectories: int,
        columns: Mapping[str, Column],
        device: torch.device,
    ) -> None:
        self.steps, self.agents, self.trajectories = steps, agents, trajectories
        total = agents * trajectories
        self._device = device
        self._columns = {
            name: unwritten((steps + (name == VALUE), total, *kind.shape), kind.dtype, device)
            for name, kind in {**columns, **_ESTIMATES}.items()
        }
        self._device_lengths = torch.zeros(total, dtype=torch.int64, device=device)
        self.lengths: NDArray[np.int64] = np.zeros(total, dtype=np.int64)

    def column(self, name: str, agents: slice = ALL_AGENTS) -> Tensor:
        """Return a view of a column, `[steps, agents * trajectories, ...]`; `value` has one row more."""
        return self._columns[name][:, self._trajectories_of(agents)]

    def by_agent(self, name: str, agents: slice = ALL_AGENTS) -> Tensor:
        """Return a view of a column, `[agents, trajectories, steps, ...]`; it is not contiguous."""
        column = self.column(name, agents)
        return column.view(len(column), -1, self.trajectories, *column.shape[2:]).movedim(0, 2)

    def finish(self, lengths: NDArray[np.int64], agents: slice = ALL_AGENTS) -> None:
        """Set how many steps of each trajectory are stored, int64 `[agents * trajectories]`.

        Raises `ValueError` unless there is one number, from 0 to `steps`, for each trajectory.
        """
        part = self._trajectories_of(agents)
        if lengths.shape != self.lengths[part].shape:
            raise ValueError(f"{len(lengths)} lengths were given for {len(self.lengths[part])} trajectories.")
        if lengths.min() < 0 or lengths.max() > self.steps:
            raise ValueError(f"Trajectory lengths must be 0 to {self.steps}, not {lengths.min()} to {lengths.max()}.")
        self.lengths[part] = lengths
        self._device_lengths[part].copy_(torch.from_numpy(self.lengths[part]))

    def estimate_advantages(self, discount: float | Tensor, trace_decay: float, agents: slice = ALL_AGENTS) -> None:
        """Write the columns `advantage` (generalised advantage estimates) and `return` (advantage plus value).

        Schulman et al. 2016 (arXiv:1506.02438), equation 16, summed backwards in double precision. If a last step is
        not terminal, the value after it stands for all later rewards. Both columns are 0 beyond a trajectory's length.
        The bits of a trajectory depend neither on other trajectories nor on the number of threads.

        Args:
            discount: gamma, or one gamma for each trajectory, float64 `[agents * trajectories]`.
            trace_decay: lambda.
        """
        part = self._trajectories_of(agents)
        rewards, terminal, values, advantages, returns = (
            self._columns[name][:, part] for name in (REWARD, TERMINAL, VALUE, ADVANTAGE, RETURN)
        )
        lengths = self._device_lengths[part]
        following = torch.zeros(lengths.shape, dtype=torch.float64, device=self._device)
        for piece in reversed(list(_pieces(int(self.lengths[part].max(initial=0))))):
            beyond, ends, now = _beyond(lengths, piece), terminal[piece], values[piece].double()
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

    def normalise_advantages(self, agents: slice = ALL_AGENTS) -> None:
        """Shift and scale the advantages of each agent's steps to mean 0 and standard deviation 1, in place."""
        part = self._trajectories_of(agents)
        advantages, lengths = self.column(ADVANTAGE, agents), self._device_lengths[part]
        advantages = advantages[: int(self.lengths[part].max(initial=0))]
        counts = _sum_by_agent(lengths.double(), self.trajectories).clamp_min_(1.0)
        total, variance = torch.zeros_like(counts), torch.zeros_like(counts)
        for _, numbers in _centred(advantages, lengths, torch.zeros_like(counts)):
            total.add_(_folded(numbers))
        mean = _sum_by_agent(total, self.trajectories) / counts
        for _, centred in _centred(advantages, lengths, mean):
            variance.add_(_folded(centred.square_()))
        deviation = (_sum_by_agent(variance, self.trajectories) / counts).sqrt_().clamp_min_(_LEAST_DEVIATION)
        for piece, centred in _centred(advantages, lengths, mean):
            advantages[piece].copy_(centred.div_(deviation))

    def minibatches(
        self, count: int, generators: Sequence[np.random.Generator], agents: slice = ALL_AGENTS
    ) -> Minibatches:
        """Draw the minibatches of an epoch: each stored step is in exactly one of its agent's `count` minibatches.

        Minibatches of an agent differ by one step at most. Their shape does not depend on the trajectories' lengths.

        Args:
            count: minibatches of each agent.
            generators: one for each agent.
        """
        batch = -(-self.steps * self.trajectories // count)
        slots = [self._slots_of(agent) for agent in range(self.agents)[agents]]
        dealt = np.zeros((len(slots), count, batch), dtype=np.int64)
        counted = np.zeros(dealt.shape, dtype=np.bool_)
        for agent, (own, generator) in enumerate(zip(slots, generators, strict=True)):
            dealt[agent] = own[:1] if len(own) else 0
            for index, part in enumerate(np.array_split(generator.permutation(own), count)):
                dealt[agent, index, : len(part)] = part
                counted[agent, index, : len(part)] = True
        return Minibatches(torch.from_numpy(dealt).to(self._device), torch.from_numpy(counted).to(self._device))

    def pick(self, slots: Tensor, *names: str) -> dict[str, Tensor]:
        """Return the named columns at `slots`, int64 of any shape: `[*slots, ...]`."""
        return {name: self._columns[name].flatten(0, 1)[slots] for name in names}

    def _trajectories_of(self, agents: slice) -> slice:
        numbers = range(self.agents)[agents]
        return slice(numbers.start * self.trajectories, numbers.stop * self.trajectories)

    def _slots_of(self, agent: int) -> NDArray[np.int64]:
        total = self.agents * self.trajectories
        numbers = range(agent * self.trajectories, (agent + 1) * self.trajectories)
        return np.concatenate([np.arange(self.lengths[number]) * total + number for number in numbers])


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
