"""Gradient steps and days of episodes captured as CUDA graphs, on the stand-in for a GPU.

A graph replays the same operators on the same memory. What would differ from one step to the next and is no input of
the graph is seen by its bits; what cannot be captured is refused by the stand-in.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from memory_cases import MB, HandMeter, hand_guard
from science_cases import learner_with
from stand_in_gpu import captured_graphs, stand_in_gpu
from torch import Tensor
from training_cases import advance, content_of, small_state

from eigen_core.common.errors import InputError
from eigen_core.generation import TrainingState
from eigen_core.machine.gpu import CapturedStep

pytestmark = pytest.mark.cpu

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    with stand_in_gpu():
        yield


def sections(learner: str, encoder: str, steps: int = 5) -> dict[str, Any]:
    return {
        "learner": learner_with(learner, gradient_steps=steps, accumulation_steps=2, n_step=3),
        "network": {"encoder": encoder, "column_chunk": 3},
        "replay": {"minimum": 1},
    }


def normalised(learner: str) -> dict[str, Any]:
    return {
        "task": "gym:uneven_environment:UnevenEnvironment",
        "environment": {"episode_steps": 9, "normalise_observations": True, "normalise_rewards": True},
        "learner": {"algorithm": learner, "gradient_steps": 4, "n_step": 3},
        "replay": {"capacity": 95, "minimum": 1},
    }


thorough, nightly = [pytest.mark.thorough], [pytest.mark.thorough, pytest.mark.slow]


@pytest.mark.parametrize(
    ("settings", "learned"),
    [
        pytest.param(sections("ddpg", "filter_bank", 4), [4], id="ddpg", marks=thorough),
        pytest.param(sections("ddpg", "tcn"), [5], id="ddpg, tcn", marks=nightly),
        # Its actor moves in every second step.
        pytest.param(sections("td3", "filter_bank", 7), [3, 4], id="td3", marks=nightly),
        pytest.param(sections("sac", "filter_bank"), [5], id="sac", marks=thorough),
        pytest.param(sections("counterfactual", "filter_bank"), [5], id="counterfactual", marks=thorough),
        pytest.param(sections("counterfactual", "tcn"), [5], id="counterfactual, tcn", marks=nightly),
        pytest.param(normalised("ddpg"), [4], id="ddpg, normalised", marks=thorough),
        pytest.param(normalised("sac"), [4], id="sac, normalised", marks=nightly),
    ],
)
def test_generations_have_the_same_bits_with_graphs(settings: dict[str, Any], learned: list[int]) -> None:
    def begun_with(*, cuda_graphs: bool) -> TrainingState:
        return small_state(device="cuda", cuda_graphs=cuda_graphs, population={"size": 3}, threads=1, **settings)

    expected = content_of(advance(begun_with(cuda_graphs=False), 2))
    assert captured_graphs() == []
    state = begun_with(cuda_graphs=True)
    # An environment's steps are no work of a GPU.
    days = [] if "environment" in settings else [state.task.episode_steps]
    assert content_of(advance(state, 2)) == expected
    replays = [graph.replays for graph in captured_graphs()]
    assert sorted(replays) == sorted(2 * [count - 2 for count in (*days, *learned)])


def test_nothing_is_captured_unless_it_is_asked_for_and_there_is_a_gpu() -> None:
    for device, captures in ((CUDA, False), (torch.device("cpu"), True)):
        repeated: CapturedStep[Tensor, Tensor] = CapturedStep(lambda given: given + 1.0, device, captures=captures)
        assert [repeated(torch.zeros(1, device=device)).tolist() for _ in range(4)] == [[1.0]] * 4
    assert captured_graphs() == []


@pytest.mark.parametrize(
    "work",
    [
        lambda given: given * torch.tensor([1.0, 2.0], device="cuda"),
        lambda given: given * given.sum().item(),
        lambda given: given[None].scatter(1, given[None].long(), given[None]),
    ],
    ids=["from the host", "item", "scattered in two dimensions"],
)
def test_what_cannot_be_captured_would_be_seen(work: Any) -> None:
    repeated = CapturedStep(work, CUDA, captures=True)
    ones = torch.ones(2, device="cuda")
    repeated(ones), repeated(ones)
    with pytest.raises(InputError, match=r"not permitted when stream is capturing.*: set cuda_graphs to false"):
        repeated(ones)
    assert captured_graphs()[-1].replays == 0


@pytest.mark.parametrize(
    "shortage",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_a_shortage_of_memory_in_a_capture_stays_what_it_is_and_may_pass(shortage: RuntimeError) -> None:
    short = [False, False, True]

    def work(given: Tensor) -> Tensor:
        if short and short.pop(0):
            raise shortage
        return given * 2.0

    repeated = CapturedStep(work, CUDA, captures=True)
    ones = torch.ones(2, device="cuda")
    repeated(ones), repeated(ones)
    with pytest.raises(RuntimeError) as caught:
        repeated(ones)
    assert caught.value is shortage
    assert repeated(ones).tolist() == [2.0, 2.0]


def test_a_guard_that_frees_memory_waits_for_the_end_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to empty its cache while a graph is captured; the guard's thread would end by that."""
    monkeypatch.setattr("eigen_core.machine.memory_guard.gpu_in_use", lambda: True)
    meter, failures, freeing = HandMeter(), list[object](), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda failed: failures.append(failed.exc_value))
    monkeypatch.setattr("eigen_core.machine.memory_guard.gc.collect", freeing.set)
    guard = hand_guard(meter)
    watcher = threading.Thread(target=guard.sample)
    calls = 0

    def work(given: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            meter.own = 900 * MB
            watcher.start()
            assert freeing.wait(10.0)
            watcher.join(0.2)
        return given * 2.0

    with guard:
        repeated = CapturedStep(work, CUDA, captures=True)
        for _ in range(3):
            repeated(torch.ones(2, device="cuda"))
        watcher.join(10.0)
    assert not watcher.is_alive()
    assert failures == []
