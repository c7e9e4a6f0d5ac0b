"""Preset eigen2 on a GPU: time of each phase, memory, kernels, and shares of what the GPU can do at most."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.groups import random_panel
from benchmarks.measure import seconds_of
from benchmarks.results import RESULTS, Section, keep
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.generation.groups import AgentComputer
from eigen_core.population import agent_groups

_DAYS, _COLUMNS = 3_700, 669
_SMALL_DAYS, _SMALL_COLUMNS = 300, 8
_SMALL = (
    "market.window=20",
    "market.validation_days=40",
    "market.holdout_days=0",
    "trading.trading_days=12",
    "trading.settlement_days=5",
    "trading.holding_days=5",
    "population.size=2",
    "replay.minimum=20",
    "learner.gradient_steps=2",
    "learner.batch_size=8",
    "learner.block_days=40",
    "evaluation.slices=2",
    "evaluation.fitness_slices=2",
    "evaluation.validation_slices=2",
)


class _Case(NamedTuple):
    encoder: str
    precision: str = "float32"
    deterministic: bool = True
    graphs: bool = False

    def __str__(self) -> str:
        graphs = ", graphs" if self.graphs else ""
        return f"{self.encoder}, {self.precision}, {'deterministic' if self.deterministic else 'any'}{graphs}"


_CASES = tuple(
    case
    for encoder in ("filter_bank", "tcn")
    for case in (
        _Case(encoder),
        _Case(encoder, graphs=True),
        _Case(encoder, deterministic=False),
        _Case(encoder, precision="bfloat16"),
    )
)
_PHASES = {"evaluate": evaluate, "train": train, "evolve": evolve}

_PICKING = {torch.ops.aten.index, torch.ops.aten.index_select, torch.ops.aten.gather, torch.ops.aten.take}


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches at most: bytes a second read and written by a copy, operations a second of a product."""

    bytes_per_second: float
    operations_per_second: Mapping[str, float]


class TouchedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    """Counts operators that compute, and the bytes of the tensors that they read and write.

    What is only looked at in another shape is not counted; what is written in place counts as read and written, and of
    what rows are picked from those alone.
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
        """Count one operator."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators += 1
            read = (args[1:], result) if func.overloadpacket in _PICKING else args
            tensors = [leaf for leaf in tree_leaves((read, kwargs, result)) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show, and keep what a GPU took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that it runs")
    parser.add_argument("--small", action="store_true", help="a tiny size, whose figures mean nothing")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            "torch finds no GPU, which this measures: check the driver, or see that it runs with --device cpu --small.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    section = run(torch.device(given.device), small=given.small)
    section.show(Console())
    if given.device == "cuda" and not given.small:
        keep({"gpu": section}, ALL_SECTIONS)
        print(f"kept in {RESULTS}")


def run(device: torch.device, *, small: bool) -> Section:
    """Run generations of each case on a device, in a small size or the preset's."""
    ceilings = _ceilings(device, small=small)
    cases = {case: _measured(device, case, small=small) for case in _CASES}
    rows = [_row(case, cases, ceilings) for case in _CASES]
    equal = all(found.weights == cases[case._replace(graphs=False)].weights for case, found in cases.items())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    reached = ", ".join(
        f"{flops / 1e12:,.2f} TFLOP/s in {kind}" for kind, flops in ceilings.operations_per_second.items()
    )
    return Section(
        title="A generation on a GPU",
        method=f"Preset eigen2 on a synthetic panel of {_DAYS:,} days, {_COLUMNS} columns and 9 features, 108 columns "
        "of it tradable: the second generation, each phase waited for; peak memory over it. Kernels are counted by the "
        "torch profiler in the third and operators in the fourth, a rollout step being a day of all episodes of a "
        "group. Bandwidth: bytes of all tensors that the operators of the train phase read and write, a second, as a "
        "share of what a large copy reaches; FLOP: of its matrix products (`torch.utils.flop_counter`), as a share of "
        "what a large product of the same precision reaches.",
        columns=(
            "encoder, precision, algorithms, whether captured as CUDA graphs",
            *(f"{phase}: s" for phase in _PHASES),
            "peak: MB",
            "kernels (operators) an update",
            "a rollout step",
            "bandwidth: %",
            "FLOP: %",
        ),
        rows=rows,
        remarks=(
            f"{name} copies {ceilings.bytes_per_second / 1e9:,.1f} GB/s and multiplies {reached}.",
            f"Captured as CUDA graphs generations have {'the same' if equal else 'OTHER'} bits.",
        ),
    )


def _config(device: torch.device, case: _Case, *, small: bool) -> Config:
    settings = [
        f"device={device.type}",
        f"network.encoder={case.encoder}",
        f"network.precision={case.precision}",
        f"cuda_graphs={case.graphs}".lower(),
    ]
    return load_config("eigen2", [*settings, *(["network.scales=[1,5,20]", *_SMALL] if small else [])])


class _Measured(NamedTuple):
    """What a case took, by phase.

    Attributes:
        seconds: of the second generation.
        peak: bytes of the GPU at most, over it.
        kernels: of the third generation.
        touched: operators, bytes and floating-point operations of the fourth.
        steps: gradient steps, and days of episodes, of a group after the other.
        weights: digest of all agents' weights at the end.
    """

    seconds: Mapping[str, float]
    peak: int
    kernels: Mapping[str, int]
    touched: Mapping[str, tuple[int, int, int]]
    steps: Mapping[str, int]
    weights: str


def _measured(device: torch.device, case: _Case, *, small: bool) -> _Measured:
    config = _config(device, case, small=small)
    panel = random_panel(config, _SMALL_COLUMNS if small else _COLUMNS, _SMALL_DAYS if small else _DAYS)
    state = start_training(config, panel)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(case.deterministic)
    try:
        for phase in _PHASES.values():
            phase(state)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = {name: seconds_of(_waited_for(device, phase, state)) for name, phase in _PHASES.items()}
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        kernels = {name: _kernels(device, lambda phase=phase: phase(state)) for name, phase in _PHASES.items()}  # type: ignore[misc]
        touched = {}
        for name, phase in _PHASES.items():
            with FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as flops, TouchedBytes() as counted:
                phase(state)
            touched[name] = (counted.operators, counted.bytes, flops.get_total_flops())
    finally:
        torch.use_deterministic_algorithms(before)
    computer, size = state.executor, config.population.size
    assert isinstance(computer, AgentComputer)
    steps = {
        "train": len(agent_groups(size, computer.group_size)) * config.learner.gradient_steps,
        "evaluate": len(agent_groups(size, computer.playing_size)) * state.task.episode_steps,
    }
    return _Measured(seconds, peak, kernels, touched, steps, state.history[-1].weights_sha256)


def _row(case: _Case, cases: Mapping[_Case, _Measured], ceilings: Ceilings) -> list[str]:
    found = cases[case]
    # A graph has the operators that it was captured from, and calls none.
    touched = cases[case._replace(graphs=False)].touched
    per_step = {
        name: f"{found.kernels[name] / count:,.0f} ({touched[name][0] / count:,.0f})"
        for name, count in found.steps.items()
    }
    _, moved, flop = touched["train"]
    seconds = found.seconds
    return [
        str(case),
        *(f"{seconds[name]:.3f}" for name in _PHASES),
        f"{found.peak / 1e6:,.0f}" if found.peak else "",
        per_step["train"],
        per_step["evaluate"],
        f"{100 * moved / seconds['train'] / ceilings.bytes_per_second:.1f}",
        f"{100 * flop / seconds['train'] / ceilings.operations_per_second[case.precision]:.1f}",
    ]


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
    """Return how many kernels, copies and fills a GPU is given; 0 on a processor."""
    if device.type != "cuda":
        compute()
        return 0
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        compute()
        _wait(device)
    return sum(event.device_type.name == "CUDA" for event in taken.events() or ())


def _ceilings(device: torch.device, *, small: bool) -> Ceilings:
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
    return Ceilings(copied, operations)


if __name__ == "__main__":
    main()
