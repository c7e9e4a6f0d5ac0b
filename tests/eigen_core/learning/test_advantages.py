"""Advantages and returns equal a slow loop; an agent's bits do not depend on its group."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trajectory_cases import COLUMNS, CPU, buffer_of, trajectory_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import Trajectory, TrajectoryBuffer

SCALARS = {name: COLUMNS[name] for name in ("reward", "terminal")}


def slow_advantages(
    trajectory: Trajectory, values: Sequence[float], discount: float, trace_decay: float
) -> list[float]:
    """Each as the sum of the discounted temporal-difference errors from its step on."""
    rewards, ends = trajectory["reward"].tolist(), trajectory["terminal"].tolist()
    following = [0.0 if ends[step] else values[step + 1] for step in range(len(rewards))]
    errors = [rewards[step] + discount * following[step] - values[step] for step in range(len(rewards))]
    estimates = []
    for first in range(len(rewards)):
        estimate, weight = 0.0, 1.0
        for step in range(first, len(rewards)):
            estimate += weight * errors[step]
            weight *= discount * trace_decay
            if ends[step]:
                break
        estimates.append(estimate)
    return estimates


def with_values(buffer: TrajectoryBuffer) -> list[list[float]]:
    generator = keyed_generator(3, buffer.steps)
    values = generator.standard_normal(tuple(buffer.column("value").shape)) * 3
    for number, length in enumerate(buffer.lengths):
        buffer.column("value")[: length + 1, number] = torch.tensor(values[: length + 1, number], dtype=torch.float32)
    return [
        column[: length + 1].tolist() for column, length in zip(buffer.column("value").T, buffer.lengths, strict=True)
    ]


EPISODES = st.lists(st.tuples(st.integers(1, 25), st.booleans(), st.integers(0, 24)), min_size=6, max_size=6)


def played(
    episodes: Sequence[tuple[int, bool, int]], agents: int = 3, steps: int = 25
) -> tuple[TrajectoryBuffer, list[Trajectory]]:
    """Trajectories of these lengths, which end with a terminal step or not, and may have one before."""
    buffer = buffer_of(steps, agents, len(episodes) // agents)
    trajectories: list[Trajectory] = []
    for index, (length, ends, inside) in enumerate(episodes):
        trajectory = trajectory_of(length, index, terminal=ends)
        trajectory["terminal"] |= torch.arange(length) == inside
        trajectories.append(trajectory)
    buffer.update(trajectories)
    return buffer, trajectories


@settings(deadline=None, max_examples=60)
@given(EPISODES, st.floats(0, 1), st.floats(0, 1))
def test_advantages_and_returns_equal_a_slow_loop(
    episodes: list[tuple[int, bool, int]], discount: float, trace_decay: float
) -> None:
    buffer, trajectories = played(episodes)
    values = with_values(buffer)
    buffer.estimate_advantages(discount, trace_decay)
    for number, trajectory in enumerate(trajectories):
        expected = torch.tensor(slow_advantages(trajectory, values[number], discount, trace_decay)).double()
        length = len(expected)
        found = buffer.column("advantage")[:, number].double()
        torch.testing.assert_close(found[:length], expected, rtol=1e-6, atol=1e-6)
        returns = expected + torch.tensor(values[number][:length])
        torch.testing.assert_close(buffer.column("return")[:length, number].double(), returns, rtol=1e-6, atol=1e-6)


def test_long_trajectories_are_computed_as_short_ones_are() -> None:
    episodes = [(length, length % 2 == 0, length // 3) for length in (300, 257, 256, 129, 128, 1)]
    buffer, trajectories = played(episodes, steps=300)
    values = with_values(buffer)
    buffer.estimate_advantages(0.99, 0.95)
    for number, trajectory in enumerate(trajectories):
        expected = torch.tensor(slow_advantages(trajectory, values[number], 0.99, 0.95)).double()
        found = buffer.column("advantage")[: len(expected), number].double()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    raw = buffer.column("advantage").double().clone()
    buffer.normalise_advantages()
    require_normalised(buffer, raw)


@settings(deadline=None)
@given(EPISODES)
def test_agents_are_normalised_by_their_own_steps(episodes: list[tuple[int, bool, int]]) -> None:
    buffer, _ = played(episodes)
    with_values(buffer)
    buffer.estimate_advantages(0.9, 0.8)
    raw = buffer.column("advantage").double().clone()
    buffer.normalise_advantages()
    require_normalised(buffer, raw)


def require_normalised(buffer: TrajectoryBuffer, raw: Tensor) -> None:
    for agent in range(3):
        numbers = range(agent * 2, agent * 2 + 2)
        own = torch.cat([raw[: buffer.lengths[number], number] for number in numbers])
        expected = (own - own.mean()) / max(float(own.std(correction=0)), 1e-8)
        found = torch.cat([buffer.column("advantage")[: buffer.lengths[number], number] for number in numbers])
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(EPISODES)
def test_the_bits_of_an_agent_do_not_depend_on_its_group(episodes: list[tuple[int, bool, int]]) -> None:
    expected: dict[str, Tensor] = {}
    for groups in ([slice(0, 6)], [slice(0, 1), slice(1, 6)], [slice(index, index + 1) for index in range(6)]):
        buffer, _ = played(episodes, agents=6)
        with_values(buffer)
        for agents in groups:
            buffer.estimate_advantages(0.97, 0.91, agents)
            buffer.normalise_advantages(agents)
        for name in ("advantage", "return"):
            found = torch.cat(
                [column[:length] for column, length in zip(buffer.column(name).T, buffer.lengths, strict=True)]
            )
            assert torch.equal(found, expected.setdefault(name, found))


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            # Enough for torch to divide the work.
            buffer = TrajectoryBuffer(130, 400, 1, SCALARS, CPU)
            rewards = keyed_generator(1).standard_normal((130, 400), dtype=np.float32)
            buffer.column("reward").copy_(torch.from_numpy(rewards))
            buffer.finish(np.arange(400) % 131)
            buffer.estimate_advantages(0.99, 0.95)
            buffer.normalise_advantages()
            found.append(buffer.column("advantage").clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_an_agent_without_steps_is_left_as_it_is() -> None:
    buffer = buffer_of(4, 2, 1)
    buffer.update([trajectory_of(3)])
    with_values(buffer)
    buffer.estimate_advantages(0.9, 0.9, slice(1, 2))
    buffer.normalise_advantages(slice(1, 2))
    buffer.estimate_advantages(0.9, 0.9)
    buffer.normalise_advantages()
    assert buffer.column("advantage")[:3, 0].isfinite().all()
    batches = buffer.minibatches(2, [keyed_generator(1, agent) for agent in range(2)])
    assert batches.counted.sum((1, 2)).tolist() == [3, 0]
    assert bool((batches.slots < 8).all())
