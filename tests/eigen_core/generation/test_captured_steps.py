"""What stands in the way of capturing a step of the inner loops as a CUDA graph: all that differs from step to step.

A graph replays the same kernels with the same arguments on the same memory. Of two steps that follow one another this
compares the operators, the shapes and types of their tensors, their numbers, and what they bring from the host. Where
nothing differs but tensors of one shape from the host, these only have to be copied into the memory that was captured.
"""

from typing import Any

import numpy as np
import pytest
import torch
from stand_in_gpu import GpuTensor, stand_in_gpu
from torch import Tensor
from training_cases import small_state

from eigen_core.generation import evaluate
from eigen_core.population import Population
from eigen_core.trading import TradingEnvironment

pytestmark = pytest.mark.cpu

Step = list[tuple[str, list[object]]]
HOST = "from the host"


class Recorder:
    """Keeps the operators of each step; `next_step` begins one."""

    def __init__(self) -> None:
        self.steps: list[Step] = [[]]

    def next_step(self) -> None:
        self.steps.append([])

    def watch(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> None:
        self.steps[-1].append((str(operator).removeprefix("aten."), [_seen(value) for value in (*args, kwargs)]))


def _seen(value: Any) -> object:
    if isinstance(value, GpuTensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, Tensor):
        return (HOST, value.tolist())
    if isinstance(value, list | tuple):
        return [_seen(part) for part in value]
    if isinstance(value, dict):
        return {name: _seen(part) for name, part in value.items()}
    return value


def differences(first: Step, second: Step) -> set[str]:
    """The operators whose arguments differ; all that differ are of the same name at the same place."""
    assert [name for name, _ in first] == [name for name, _ in second]
    found = set()
    for (name, before), (_, after) in zip(first, second, strict=True):
        if before != after:
            found.add(f"{name} {HOST}" if HOST in str(before) else name)
    return found


def learned(encoder: str, algorithm: str, first_days: tuple[int, ...]) -> list[Step]:
    """Gradient steps on blocks that begin on these days."""
    recorder = Recorder()
    with stand_in_gpu(recorder.watch):
        state = small_state(
            device="cuda",
            network={"encoder": encoder, "column_chunk": 3},
            learner={"algorithm": algorithm, "gradient_steps": len(first_days), "accumulation_steps": 1},
        )
        evaluate(state)
        plan: Any = state.learner.plan(state.replay, state.population.size, 1)
        sampler: Any = state.task.sampler(state.replay, state.config.learner.batch_size)
        generator = np.random.default_rng(1)
        for step, block in enumerate(first_days):
            plan.slots[:, step, 0] = torch.as_tensor(sampler.draw(generator, block))
        object.__setattr__(plan, "blocks", tuple((block,) for block in first_days))
        population = Population(state.population.weights, state.population.state)
        recorder.next_step()
        state.learner.learn(population, plan, state.replay, recorder.next_step)
    return recorder.steps[1 : 1 + len(first_days)]


DAYS = {
    # The rows of the days that were encoded, the time in the episode and the noise.
    "select.int",
    # Its number beside the first days of episodes.
    "add.Tensor",
}

UPDATES = {
    # The plan of a generation has the slots of each step; the processor computes what Adam divides its moments by.
    ("filter_bank", "ddpg"): {"select.int", f"_to_copy.default {HOST}"},
    # The noise of target actions and actors is drawn on the processor.
    ("filter_bank", "td3"): {"select.int", f"_to_copy.default {HOST}"},
    ("filter_bank", "sac"): {"select.int", f"_to_copy.default {HOST}"},
    # The block's first day, as a number.
    ("tcn", "ddpg"): {"select.int", f"_to_copy.default {HOST}", "slice.Tensor", "sub.Tensor"},
}


@pytest.mark.parametrize(("encoder", "algorithm"), UPDATES)
@pytest.mark.thorough
def test_gradient_steps_differ_in_their_batch_and_in_what_the_processor_computes(encoder: str, algorithm: str) -> None:
    # TD3 moves its actor in every second step; blocks whose window begins before the first day have other shapes.
    every = 2 if algorithm == "td3" else 1
    steps = learned(encoder, algorithm, (30, 40, 41, 42))
    assert len(steps[-1]) > 500
    assert differences(steps[-1 - every], steps[-1]) == UPDATES[encoder, algorithm]


def test_that_a_step_differs_would_be_seen() -> None:
    with stand_in_gpu((first := Recorder()).watch):
        torch.ones(3, device="cuda").mul(2.0)
    with stand_in_gpu((second := Recorder()).watch):
        torch.ones(3, device="cuda").mul(3.0)
    with stand_in_gpu((longer := Recorder()).watch):
        torch.ones(4, device="cuda").mul(2.0)
    assert differences(first.steps[0], first.steps[0]) == set()
    assert differences(first.steps[0], second.steps[0]) == {"mul.Tensor"}
    assert differences(first.steps[0], longer.steps[0]) == {"ones.default", "mul.Tensor"}


def test_days_of_a_rollout_differ_in_numbers_that_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day picks what was encoded, its time and the noise."""
    recorder, played = Recorder(), TradingEnvironment.step

    def step(environment: TradingEnvironment, *actions: Tensor) -> None:
        played(environment, *actions)
        recorder.next_step()

    monkeypatch.setattr(TradingEnvironment, "step", step)
    with stand_in_gpu(recorder.watch):
        state = small_state(device="cuda", population={"group_size": 5})
        evaluate(state)
    first, second = recorder.steps[6:8]
    assert len(first) > 50
    assert differences(first, second) == DAYS
