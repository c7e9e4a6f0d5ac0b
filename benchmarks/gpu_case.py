"""Time of each phase, memory and kernels of a training on a GPU, and the GPU's peak rates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import seconds_of
from eigen_core.config import Config, DdpgConfig
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.generation.executor import LocalExecutor
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.population import agent_groups
from eigen_core.task.panel import PanelDimensions, random_panel

DAYS, COLUMNS = 3_700, 669
_ASSETS, _FEATURES = 108, 9
_SMALL_DAYS, _SMALL_COLUMNS = 300, 8
_SMALL = (
    "market.window=20",
    "market.validation=40",
    "market.holdout=0",
    "trading.trading_bars=12",
    "trading.settlement_bars=5",
    "trading.holding_bars=5",
    "population.size=2",
    "replay.minimum=20",
    "learner.gradient_steps=2",
    "learner.batch_size=8",
    "learner.block_bars=40",
    "evaluation.slices=2",
    "evaluation.fitness_slices=2",
    "evaluation.validation_slices=2",
)


class Case(NamedTuple):
    encoder: str
    precision: str = "float32"
    deterministic: bool = True
    graphs: bool = False

    def __str__(self) -> str:
        graphs = ", graphs" if self.graphs else ""
        return f"{self.encoder}, {self.precision}, {'deterministic' if self.deterministic else 'any'}{graphs}"


PHASES = {"evaluate": evaluate, "train": train, "evolve": evolve}

_PICKING = {torch.ops.aten.index, torch.ops.aten.index_select, torch.ops.aten.gather, torch.ops.aten.take}


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a device: bytes read and written by a copy, operations of a matrix product."""

    device: str
    bytes_per_second: float
    operations_per_second: Mapping[str, float]


class TouchedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    """Counts operators that compute, and the bytes of the tensors that they read and write.

    Views count nothing, tensors written in place count twice, and of indexed tensors only the rows that are read count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation here
        self.operators = self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's interface
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators += 1
            read = (args[1:], result) if func.overloadpacket in _PICKING else args
            tensors = [leaf for leaf in tree_leaves((read, kwargs, result)) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


class Measured(NamedTuple):
    """Measurements of a case, by phase.

    Attributes:
        seconds, peak: of the second generation; the GPU's memory in bytes.
        kernels: of the third generation.
        touched: operators, bytes and floating-point operations of the fourth; empty with CUDA graphs.
        steps: gradient steps, and days of episodes, summed over groups.
        weights: digest of all weights after the third.
    """

    seconds: Mapping[str, float]
    peak: int
    kernels: Mapping[str, int]
    touched: Mapping[str, tuple[int, int, int]]
    steps: Mapping[str, int]
    weights: str


def measured(device: torch.device, case: Case, small: bool) -> Measured:
    """Run generations of a case on a device, in a small size or the preset's.

    Call it once per process: the profiler makes later work slower.
    """
    config = _config(device, case, small=small)
    days, columns = (_SMALL_DAYS, _SMALL_COLUMNS) if small else (DAYS, COLUMNS)
    panel = random_panel(config.market, PanelDimensions(days, columns, min(columns, _ASSETS), _FEATURES))
    state = start_training(config, panel)
    torch.use_deterministic_algorithms(case.deterministic)
    for phase in PHASES.values():
        phase(state)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = {name: seconds_of(_waited_for(device, phase, state)) for name, phase in PHASES.items()}
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    kernels = {name: _kernels(device, partial(phase, state)) for name, phase in PHASES.items()}
    weights = state.history[-1].weights_sha256
    touched = {}
    for name, phase in () if case.graphs else PHASES.items():
        with FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as flops, TouchedBytes() as counted:
            phase(state)
        touched[name] = (counted.operators, counted.bytes, flops.get_total_flops())
    computer, size = state.executor, config.population.size
    assert isinstance(computer, LocalExecutor)
    steps = {
        "train": len(agent_groups(size, computer.group_size)) * learner_settings(config, DdpgConfig).gradient_steps,
        "evaluate": len(agent_groups(size, computer.playing_size)) * state.task.episode_steps,
    }
    return Measured(seconds, peak, kernels, touched, steps, weights)


def _config(device: torch.device, case: Case, *, small: bool) -> Config:
    settings = [
        f"device={device.type}",
        f"network.encoder={case.encoder}",
        f"network.precision={case.precision}",
        f"cuda_graphs={case.graphs}".lower(),
    ]
    return load_config("eigen2", [*settings, *(["network.scales=[1,5,20]", *_SMALL] if small else [])])


def _in_place(
    total: Sequence[int],  # noqa: ARG001 - the operator's
    left: Sequence[int],
    right: Sequence[int],
    **_: Any,  # noqa: ANN401 - not looked at
) -> int:
    return 2 * left[0] * left[1] * left[2] * right[2]


# The counter knows the products that return a new tensor.
_IN_PLACE = {torch.ops.aten.baddbmm_: _in_place}


def _waited_for(
    device: torch.device, phase: Callable[[TrainingState], object], state: TrainingState
) -> Callable[[], object]:
    def compute() -> None:
        phase(state)
        _wait(device)

    _wait(device)
    return compute


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _kernels(device: torch.device, compute: Callable[[], object]) -> int:
    """Return the number of kernels, copies and fills on a GPU; 0 on a CPU."""
    if device.type != "cuda":
        compute()
        return 0
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as taken:
        compute()
        _wait(device)
    return sum(event.device_type.name == "CUDA" for event in taken.events() or ())


def ceilings_of(device: torch.device, small: bool) -> Ceilings:
    """Measure the peak rates of a device; those of the small size mean nothing."""
    source = torch.ones((1 << 20) if small else (1 << 28), device=device)
    target, size = torch.empty_like(source), 256 if small else 8_192

    def least(compute: Callable[[], object]) -> float:
        def waited() -> None:
            compute()
            _wait(device)

        waited()
        return min(seconds_of(waited) for _ in range(5))

    copied = 2 * source.numel() * source.element_size() / least(lambda: target.copy_(source))
    operations = {}
    for name, precision in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        square = torch.ones((size, size), device=device, dtype=precision)
        operations[name] = 2 * size**3 / least(lambda square=square: square @ square)  # type: ignore[misc]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    return Ceilings(name, copied, operations)
