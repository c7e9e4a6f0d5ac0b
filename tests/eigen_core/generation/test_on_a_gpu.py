"""Whole generations on a stand-in for a GPU: no mixed devices, bits of the processor, waits that do not grow.

Gradient steps and days of episodes are captured as CUDA graphs: a graph replays the same operators on the same memory.
What would differ from one step to the next and is no input of the graph is seen by its bits; what cannot be captured is
refused by the stand-in.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from memory_cases import MB, HandMeter, hand_guard
from operator_modes import leaves_of
from science_cases import learner_with, method_with, random_panel, small_config
from stand_in_gpu import GPU, GpuTensor, Operator, captured_graphs, stand_in_gpu, waits
from torch import Tensor
from training_cases import advance, content_of, small_state

from eigen_core.common.errors import InputError
from eigen_core.config import merge, registry
from eigen_core.generation import TrainingState, evaluate, restore, snapshot, train
from eigen_core.judging.backtest import MarketBacktest, PortfolioBacktest, TaskBacktest
from eigen_core.machine.gpu import CapturedStep
from eigen_core.networks.policies import Heads
from eigen_core.task import open_data, task_class

pytestmark = pytest.mark.cpu


# What a GPU would choose by bytes is given, so that sums have the same order.
def sections(learner: str, encoder: str) -> dict[str, Any]:
    return {
        "learner": learner_with(learner, gradient_steps=2),
        "network": {"encoder": encoder, "column_chunk": 3},
        "population": {"size": 3},
        "threads": 1,
    }


def cases() -> Iterator[Any]:
    """One encoder for each learner is enough but nightly."""
    for learner, encoder in product(registry.LEARNERS, ("filter_bank", "tcn")):
        marks = [pytest.mark.thorough] if encoder == "filter_bank" else [pytest.mark.thorough, pytest.mark.slow]
        quick = (learner, encoder) in (("ddpg", "tcn"), ("counterfactual", "filter_bank"))
        if (learner, encoder) != ("ppo", "tcn"):
            yield pytest.param(sections(learner, encoder), id=f"{learner}-{encoder}", marks=[] if quick else marks)
    for learner in ("counterfactual", "sac"):
        settings = learner_with(learner, gradient_steps=2, batch_size=4, known_return_weight=0.5)
        linear = {"network": {"linear_scales": [1, 3]}, "learner": settings}
        one = merge(sections(learner, "filter_bank"), linear)
        yield pytest.param(one, id=f"linear part, {learner}", marks=pytest.mark.thorough)
    for method in registry.METHODS:
        evolution = {"evolution": method_with(method, sync_generations=1), "population": {"size": 10}}
        yield pytest.param(sections("ddpg", "filter_bank") | evolution, id=method, marks=pytest.mark.thorough)


# Of the operators that raise on a GPU in torch's deterministic mode (`torch.use_deterministic_algorithms`), those that
# a network without pooling, losses of torch and images could come to use. The mode has other kernels for those of ours
# that add or write by index: index_add_, index_put_, scatter_, gather and index_select with a gradient.
WITHOUT_DETERMINISTIC_FORM = {
    "bincount",
    "cumsum",
    "histc",
    "kthvalue",
    "median",
    "put_",
    "reflection_pad1d_backward",
    "scatter_reduce",
}


def test_an_operator_without_a_deterministic_form_would_be_seen() -> None:
    names = set[str]()
    with stand_in_gpu(lambda operator, *_: names.add(name_of(operator))):
        torch.ones(3, device="cuda").cumsum(0)
    assert names & WITHOUT_DETERMINISTIC_FORM == {"cumsum"}


def name_of(operator: Any) -> str:
    return str(operator).split(".")[1]


@pytest.mark.parametrize("settings", list(cases()))
def test_generations_are_deterministic_and_have_the_bits_of_the_processor(settings: dict[str, Any]) -> None:
    expected = content_of(advance(small_state(device="cpu", **settings), 2))
    names = set[str]()
    with stand_in_gpu(lambda operator, *_: names.add(name_of(operator))):
        state = advance(small_state(device="cuda", **settings), 2)
        assert torch.are_deterministic_algorithms_enabled()
        assert {tensor.device for tensor in state.population.tensors().values()} == {GPU}
        assert content_of(state) == expected
    assert "bmm" in names
    assert not names & WITHOUT_DETERMINISTIC_FORM


@pytest.mark.parametrize(
    ("backtest", "learner"), [(MarketBacktest, "ddpg"), (PortfolioBacktest, "direct")], ids=["market", "portfolio"]
)
def test_a_backtest_computes_deterministically_too(backtest: type[TaskBacktest[Any, Any]], learner: str) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    config = small_config(learner={"algorithm": learner})
    state = small_state(device="cpu", learner={"algorithm": learner})
    names = set[str]()
    with stand_in_gpu(lambda operator, *_: names.add(name_of(operator))):
        built = backtest(config, random_panel(config), GPU)
        assert torch.are_deterministic_algorithms_enabled()
        built.play(state.population.weights.to(GPU), range(60, 90), "population", draws=2)
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not names & WITHOUT_DETERMINISTIC_FORM


def test_an_environment_computes_deterministically_too() -> None:
    config = small_config(task="gym:uneven_environment:UnevenEnvironment", environment={"episode_steps": 9})
    with stand_in_gpu():
        task_class(config)(config, open_data(config).content, GPU, Heads())
        assert torch.are_deterministic_algorithms_enabled()


def test_a_run_moves_there_and_says_that_bits_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    saved = snapshot(advance(small_state(device="cpu"), 1))
    with stand_in_gpu():
        state = small_state(device="cuda")
        restore(state, saved)
        assert state.population.weights.device == state.replay.tensors()["reward"].device == GPU
        advance(state, 1)
    assert "Stand-in with 9.0, cuBLAS" in caplog.text
    assert "bits may differ" in caplog.text


_SMALL = {"device": "cuda", "threads": 1, "replay": {"minimum": 1}, "learner": {"gradient_steps": 2}}


def is_sent(args: tuple[Any, ...], result: Any) -> bool:
    from_host = any(
        isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor) and leaf.dim() for leaf in leaves_of(args)
    )
    return from_host and isinstance(result, GpuTensor)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """A machine with the stand-in; counts how often the host waits for it, and sends to it."""
    counts: Counter[str] = Counter()

    def watch(operator: Operator, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        counts["waits"] += waits(operator, args, result)
        counts["sends"] += is_sent(args, result)

    with stand_in_gpu(watch):
        yield counts


def waits_of(phases: Callable[[TrainingState], object], **sections: Any) -> int:
    with counted() as counts:
        phases(small_state(**merge(_SMALL, sections)))
    return counts["waits"]


def test_phases_wait_as_often_however_many_agents_and_days_there_are() -> None:
    def generations(size: int) -> int:
        return waits_of(lambda state: advance(state, 2), population={"size": size})

    def whole_episodes(days: int) -> int:
        return waits_of(evaluate, trading={"observe_portfolio": False, "trading_bars": days})

    # The first time a process also tries whether bits depend on groups.
    whole_episodes(10)
    assert whole_episodes(10) == whole_episodes(15)
    assert generations(3) == generations(8)


@pytest.mark.parametrize(
    "learner", ["ddpg", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("td3", "sac", "counterfactual"))]
)
def test_a_train_phase_waits_and_sends_as_often_however_many_its_gradient_steps(learner: str) -> None:
    def seen_with(gradient_steps: int) -> Counter[str]:
        with counted() as counts:
            of_learner = {"algorithm": learner, "gradient_steps": gradient_steps}
            state = small_state(**merge(_SMALL, {"learner": of_learner}))
            evaluate(state)
            counts.clear()
            train(state)
        return counts

    few, many = seen_with(2), seen_with(4)
    assert many == few
    assert min(few.values()) > 0


CUDA = torch.device("cuda")


@pytest.fixture
def _gpu() -> Iterator[None]:
    with stand_in_gpu():
        yield


def replayed(learner: str, encoder: str, steps: int = 5) -> dict[str, Any]:
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
        pytest.param(replayed("ddpg", "filter_bank", 4), [4], id="ddpg", marks=thorough),
        pytest.param(replayed("ddpg", "tcn"), [5], id="ddpg, tcn", marks=nightly),
        # Its actor moves in every second step.
        pytest.param(replayed("td3", "filter_bank", 7), [3, 4], id="td3", marks=nightly),
        pytest.param(replayed("sac", "filter_bank"), [5], id="sac", marks=thorough),
        pytest.param(replayed("counterfactual", "filter_bank"), [5], id="counterfactual", marks=thorough),
        pytest.param(replayed("counterfactual", "tcn"), [5], id="counterfactual, tcn", marks=nightly),
        pytest.param(normalised("ddpg"), [4], id="ddpg, normalised", marks=thorough),
        pytest.param(normalised("sac"), [4], id="sac, normalised", marks=nightly),
    ],
)
@pytest.mark.usefixtures("_gpu")
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


@pytest.mark.usefixtures("_gpu")
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
@pytest.mark.usefixtures("_gpu")
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
@pytest.mark.usefixtures("_gpu")
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


@pytest.mark.usefixtures("_gpu")
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
