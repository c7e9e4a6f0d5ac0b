"""A trajectory buffer equals lists of trajectories, its advantages a slow loop; what does not fit is refused."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_tensors import LiveTensors
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import HostToDevice, Trajectory, TrajectoryBuffer
from eigen_core.task.replay import Column

CPU = torch.device("cpu")
COLUMNS = {
    "observation": Column(torch.float16, (2, 3)),
    "action": Column(torch.float32, (2,)),
    "reward": Column(torch.float32),
    "terminal": Column(torch.bool),
}


def buffer_of(steps: int, agents: int, trajectories: int) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(
        steps, agents, trajectories, COLUMNS, CPU, ["observation"], {"log_probability": Column(torch.float32)}
    )
    # What is not stored may be anything.
    for name in ("observation", "action", "reward", "value", "advantage", "return", "log_probability"):
        buffer.column(name).fill_(torch.nan)
    buffer.column("terminal").fill_(True)
    return buffer


def trajectory_of(length: int, *key: int, terminal: bool = True) -> dict[str, Tensor]:
    generator = keyed_generator(1, length, *key)
    return {
        "observation": torch.tensor(generator.standard_normal((length + 1, 2, 3)), dtype=torch.float16),
        "action": torch.tensor(generator.standard_normal((length, 2)), dtype=torch.float32),
        "reward": torch.tensor(generator.standard_normal(length), dtype=torch.float32),
        "terminal": (torch.arange(length) == length - 1) & terminal,
    }


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def require_stored(buffer: TrajectoryBuffer, number: int, trajectory: Trajectory) -> None:
    assert buffer.lengths[number] == len(trajectory["reward"])
    for name, column in trajectory.items():
        held = buffer.column(name)[: len(column), number]
        assert torch.equal(held, column.to(held.dtype))


@settings(deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=3))
def test_trajectories_of_any_lengths_are_stored_as_they_are_in_the_same_memory(rounds: list[list[int]]) -> None:
    buffer = buffer_of(12, 1, 13)
    names = (*COLUMNS, "value", "advantage", "return", "log_probability")
    addresses = [buffer.column(name).data_ptr() for name in names]
    for lengths in rounds:
        trajectories = [trajectory_of(length, index) for index, length in enumerate(lengths)]
        # Other types of a kind are converted.
        trajectories[0]["reward"] = trajectories[0]["reward"].double()
        buffer.update(trajectories)
        assert buffer.lengths.tolist() == lengths + [0] * (13 - len(lengths))
        for number, trajectory in enumerate(trajectories):
            require_stored(buffer, number, trajectory)
    assert addresses == [buffer.column(name).data_ptr() for name in names]


def test_steps_are_stored_as_they_happen() -> None:
    whole, in_place = buffer_of(5, 3, 2), buffer_of(5, 3, 2)
    trajectories = [trajectory_of(5, index) for index in range(6)]
    whole.update(trajectories)
    for agents in (slice(0, 1), slice(1, 3)):
        part = trajectories[agents.start * 2 : agents.stop * 2]
        for step in range(5):
            in_place.write(step, {name: torch.stack([one[name][step] for one in part]) for name in COLUMNS}, agents)
        last = torch.stack([one["observation"][5] for one in part])
        in_place.column("observation", agents)[5] = last
        in_place.finish(np.full(len(part), 5), agents)
    for name in COLUMNS:
        assert torch.equal(whole.column(name), in_place.column(name))
    assert whole.lengths.tolist() == in_place.lengths.tolist()


def second_with(**changes: Tensor) -> Callable[[TrajectoryBuffer], None]:
    return lambda buffer: buffer.update([trajectory_of(3), {**trajectory_of(3), **changes}])


REFUSED: dict[str, Callable[[TrajectoryBuffer], None]] = {
    "0 trajectories were given, not 1 to 2": lambda buffer: buffer.update([]),
    "3 trajectories were given, not 1 to 2": lambda buffer: buffer.update([trajectory_of(3)] * 3),
    "Trajectory 0 has 5 steps, not 1 to 4": lambda buffer: buffer.update([trajectory_of(5), trajectory_of(3)]),
    r"Trajectory 1 has the columns .*'speed'.*, not": second_with(speed=torch.zeros(3)),
    r"terminal as torch.float32 \[3\], not torch.bool \[steps\]": second_with(terminal=torch.zeros(3)),
    r"action as torch.float32 \[3, 3\], not .* \[steps, 2\]": second_with(action=torch.zeros(3, 3)),
    "3 rows of observation, not 4 for its 3 steps": second_with(observation=torch.zeros(3, 2, 3)),
    "action on meta, neither on cpu nor": second_with(action=torch.zeros((3, 2), device="meta")),
    "There is no column speed among": lambda buffer: buffer.write(0, {"speed": torch.zeros(2)}),
    r"reward of a step is torch.float32 \[3\], not": lambda buffer: buffer.write(0, {"reward": torch.zeros(3)}),
    "3 lengths were given for 2 trajectories": lambda buffer: buffer.finish(np.array([1, 2, 3])),
    "Trajectory lengths must be 0 to 4, not -1 to 5": lambda buffer: buffer.finish(np.array([-1, 5])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(message: str) -> None:
    buffer, kept = buffer_of(4, 1, 2), [trajectory_of(4, 7), trajectory_of(2, 8)]
    buffer.update(kept)
    with pytest.raises(ValueError, match=message):
        REFUSED[message](buffer)
    for number, trajectory in enumerate(kept):
        require_stored(buffer, number, trajectory)


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=6, max_size=6), st.integers(1, 9))
def test_each_step_is_in_exactly_one_minibatch_of_its_agent(lengths: list[int], count: int) -> None:
    buffer = buffer_of(12, 3, 2)
    buffer.finish(np.array(lengths))
    buffer.column("reward").copy_(torch.arange(72.0).reshape(12, 6))
    batches = buffer.minibatches(count, [keyed_generator(1, agent) for agent in range(3)])
    assert batches.slots.shape == batches.counted.shape == (3, count, math.ceil(24 / count))
    picked = buffer.pick(batches.slots, "reward")["reward"]
    for agent in range(3):
        own = [
            buffer.column("reward")[:length, number] for number, length in enumerate(lengths) if number // 2 == agent
        ]
        found = picked[agent][batches.counted[agent]]
        assert sorted(found.tolist()) == sorted(torch.cat(own).tolist())
        sizes = batches.counted[agent].sum(-1).tolist()
        assert max(sizes) - min(sizes) <= 1
        filling = set(batches.slots[agent][~batches.counted[agent]].tolist())
        assert not found.numel() or filling <= set(batches.slots[agent][batches.counted[agent]].tolist())


@pytest.mark.cpu
def test_what_a_round_takes_beside_the_buffer_does_not_grow_with_the_steps() -> None:
    peaks = []
    for steps in (256, 1_024):
        buffer = TrajectoryBuffer(
            steps, 2, 2, {**COLUMNS, "dense": Column(torch.float32, (1_000,))}, CPU, ["observation"]
        )
        trajectories = [{**trajectory_of(steps), "dense": torch.ones(steps, 1_000)}] * 4
        row = {name: rows[:1].expand(4, *rows.shape[1:]) for name, rows in trajectories[0].items()}
        with LiveTensors() as tensors:
            assert tensors.peak_of(partial(buffer.write, 0, row)) < 1_000
            assert tensors.peak_of(partial(buffer.update, trajectories)) < 1_000
            peaks.append(tensors.peak_of(partial(buffer.estimate_advantages, 0.99, 0.95)))
            peaks.append(tensors.peak_of(buffer.normalise_advantages))
    assert peaks[:2] == peaks[2:]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 3), st.integers(12, 100), st.booleans())
def test_what_is_staged_arrives(rows: int, width: int, piece_bytes: int, converted: bool) -> None:
    staging = HostToDevice(CPU, piece_bytes // 4 * 4)
    generator = keyed_generator(1, rows, width)
    for _ in range(3):
        source = torch.tensor(generator.standard_normal((rows, width)), dtype=torch.float64)
        source = source if converted else source.float()
        target = torch.zeros(rows, 2, width)
        staging.copy(source, target[:, 1])
        assert torch.equal(target[:, 1], source.float())
        assert not target[:, 0].any()


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


def stored(buffer: TrajectoryBuffer, name: str, final: int = 0) -> list[Tensor]:
    columns = zip(buffer.column(name).T, buffer.lengths, strict=True)
    return [column[: length + final].double() for column, length in columns]


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
        values = 3.0 * keyed_generator(3, STEPS).standard_normal((STEPS + 1, AGENTS * EACH), dtype=np.float32)
        # What lies beyond an episode may be anything.
        values[np.arange(STEPS + 1)[:, None] > buffer.lengths] = np.nan
        buffer.column("value").copy_(torch.from_numpy(values))
        for agents in groups:
            buffer.estimate_advantages(discount, trace_decay, agents)
        estimates, returns = stored(buffer, "advantage"), stored(buffer, "return")
        for number, own_values in enumerate(stored(buffer, "value", final=1)):
            slow = slow_advantages(trajectories[number], own_values.tolist(), discount, trace_decay)
            expected = torch.tensor(slow, dtype=torch.float64)
            torch.testing.assert_close(estimates[number], expected, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(returns[number], expected + own_values[:-1], rtol=1e-6, atol=1e-6)
        for agents in groups:
            buffer.normalise_advantages(agents)
        normalised = stored(buffer, "advantage")
        for agent in range(AGENTS):
            own_steps = slice(agent * EACH, (agent + 1) * EACH)
            own, found = torch.cat(estimates[own_steps]), torch.cat(normalised[own_steps])
            scaled = (own - own.mean()) / max(float(own.std(correction=0)), 1e-8)
            torch.testing.assert_close(found, scaled, rtol=1e-5, atol=1e-6)
        bits.append(torch.cat([*returns, *normalised]))
    assert torch.equal(*bits)


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            # Enough for torch to divide the work.
            buffer = TrajectoryBuffer(130, 400, 1, {name: COLUMNS[name] for name in ("reward", "terminal")}, CPU)
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
