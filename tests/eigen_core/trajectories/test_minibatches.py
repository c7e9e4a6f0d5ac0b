"""An epoch holds each step exactly once, in batches of one shape."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_cases import buffer_of

from eigen_core.randomness import keyed_generator


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


def test_minibatches_are_random_repeatable_and_of_the_agent_alone() -> None:
    buffer = buffer_of(12, 3, 2)
    buffer.finish(np.full(6, 12))
    drawn = buffer.minibatches(4, [keyed_generator(1, agent) for agent in range(3)])
    again = buffer.minibatches(4, [keyed_generator(1, agent) for agent in (1, 2)], slice(1, 3))
    other = buffer.minibatches(4, [keyed_generator(2, agent) for agent in range(3)])
    assert torch.equal(drawn.slots[1:], again.slots)
    assert torch.equal(drawn.counted[1:], again.counted)
    assert not torch.equal(drawn.slots, other.slots)
    with pytest.raises(ValueError, match="1 generators were given for 3 agents"):
        buffer.minibatches(4, [keyed_generator(1)])
