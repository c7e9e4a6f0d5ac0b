"""Advantages and returns equal a slow loop; an agent's bits depend neither on its group nor on threads."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from trajectory_cases import COLUMNS, CPU, buffer_of, trajectory_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import Trajectory, TrajectoryBuffer

SCALARS = {name: COLUMNS[name] for name in ("reward", "terminal")}
AGENTS, EACH, STEPS = 3, 2, 300


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
    values = 3.0 * keyed_generator(3, buffer.steps).standard_normal(tuple(buffer.column("value").shape))
    for number, length in enumerate(buffer.lengths):
        buffer.column("value")[: length + 1, number] = torch.tensor(values[: length + 1, number], dtype=torch.float32)
    return [
        column[: length + 1].tolist() for column, length in zip(buffer.column("value").T, buffer.lengths, strict=True)
    ]


def stored(buffer: TrajectoryBuffer, name: str) -> list[Tensor]:
    return [column[:length] for column, length in zip(buffer.column(name).T, buffer.lengths, strict=True)]


EPISODE = st.tuples(st.integers(1, 25), st.booleans(), st.integers(0, 24))


@settings(deadline=None, max_examples=60)
@given(st.lists(EPISODE, min_size=AGENTS * EACH, max_size=AGENTS * EACH), st.floats(0, 1), st.floats(0, 1))
@example([(length, length % 2 == 0, length // 3) for length in (300, 257, 256, 129, 128, 1)], 0.99, 0.95)
def test_advantages_and_returns_equal_a_slow_loop(
    episodes: list[tuple[int, bool, int]], discount: float, trace_decay: float
) -> None:
    """Of trajectories that end with a terminal step or not and may have one before; of any group of agents."""
    trajectories: list[Trajectory] = []
    for index, (length, ends, inside) in enumerate(episodes):
        trajectory = trajectory_of(length, index, terminal=ends)
        trajectory["terminal"] |= torch.arange(length) == inside
        trajectories.append(trajectory)
    bits = []
    for groups in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        buffer = buffer_of(STEPS, AGENTS, EACH)
        buffer.update(trajectories)
        values = with_values(buffer)
        for agents in groups:
            buffer.estimate_advantages(discount, trace_decay, agents)
        estimates, returns = stored(buffer, "advantage"), stored(buffer, "return")
        expected = [
            torch.tensor(slow_advantages(trajectory, own, discount, trace_decay)).double()
            for trajectory, own in zip(trajectories, values, strict=True)
        ]
        for number, slow in enumerate(expected):
            torch.testing.assert_close(estimates[number].double(), slow, rtol=1e-6, atol=1e-6)
            slow_returns = slow + torch.tensor(values[number][: len(slow)])
            torch.testing.assert_close(returns[number].double(), slow_returns, rtol=1e-6, atol=1e-6)
        raw = [part.clone() for part in estimates]
        for agents in groups:
            buffer.normalise_advantages(agents)
        normalised = stored(buffer, "advantage")
        for agent in range(AGENTS):
            own_steps = slice(agent * EACH, (agent + 1) * EACH)
            own, found = torch.cat(raw[own_steps]).double(), torch.cat(normalised[own_steps]).double()
            scaled = (own - own.mean()) / max(float(own.std(correction=0)), 1e-8)
            torch.testing.assert_close(found, scaled, rtol=1e-5, atol=1e-6)
        bits.append(torch.cat([*returns, *normalised]).clone())
    assert torch.equal(*bits)


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
    for agents in (slice(1, 2), slice(None)):
        buffer.estimate_advantages(0.9, 0.9, agents)
        buffer.normalise_advantages(agents)
    assert buffer.column("advantage")[:3, 0].isfinite().all()
    batches = buffer.minibatches(2, [keyed_generator(1, agent) for agent in range(2)])
    assert batches.counted.sum((1, 2)).tolist() == [3, 0]
    assert bool((batches.slots < 8).all())
