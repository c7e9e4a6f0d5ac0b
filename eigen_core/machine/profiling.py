"""A profile of one generation with torch's profiler: a trace of each phase, and a table of operators."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

_MICROSECONDS = 1e6
_TABLE = "operators.csv"


@dataclass(frozen=True)
class OperatorTime:
    """Time of an operator in a phase, or of a kernel that no operator has launched, as those of a CUDA graph.

    Attributes:
        phase: the phase.
        operator: its name in torch.
        calls: how often it was called.
        cpu_seconds: without the operators that it calls.
        cpu_share: of those of the phase, from 0 to 1.
        gpu_seconds: of the kernels that it launched, without those of the operators that it calls; 0 without a GPU.
    """

    phase: str
    operator: str
    calls: int
    cpu_seconds: float
    cpu_share: float
    gpu_seconds: float


@dataclass
class Profile:
    """Writes profiles of the phases of a generation.

    Attributes:
        folder: gets `PHASE.trace.json.gz`, for Perfetto or chrome://tracing, and `operators.csv`.
        generation: which is profiled.
        operators: the table so far, in each phase those that took longest first, on the GPU if there is one.
    """

    folder: Path
    generation: int
    operators: list[OperatorTime] = field(default_factory=list)

    def write(self, phase: str, taken: profile) -> None:
        """Add a phase; what it took before, in a try that failed, is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        taken.export_chrome_trace(str(self.folder / f"{phase}.trace.json.gz"))
        found = [operator for operator in self.operators if operator.phase != phase]
        self.operators = [*found, *_operators(phase, taken)]
        with (self.folder / _TABLE).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(column.name for column in fields(OperatorTime))
            table.writerows(astuple(operator) for operator in self.operators)


def _operators(phase: str, taken: profile) -> list[OperatorTime]:
    # A kernel has its own event, and its time is also in that of the operator that launched it.
    operators = [event for event in taken.key_averages() if event.device_type.name == "CPU"]
    total = sum(event.self_cpu_time_total for event in operators)
    found = [
        OperatorTime(
            phase=phase,
            operator=event.key,
            calls=event.count,
            cpu_seconds=event.self_cpu_time_total / _MICROSECONDS,
            cpu_share=event.self_cpu_time_total / total,
            gpu_seconds=event.self_device_time_total / _MICROSECONDS,
        )
        for event in operators
    ]
    alone: dict[str, list[float]] = defaultdict(list)
    for event in taken.events() or ():  # type: ignore[no-untyped-call] # torch has no annotation here
        if event.device_type.name != "CPU" and not event.linked_correlation_id:
            alone[event.name].append(event.self_device_time_total / _MICROSECONDS)
    found += [OperatorTime(phase, name, len(times), 0.0, 0.0, sum(times)) for name, times in alone.items()]
    return sorted(found, key=lambda operator: (-operator.gpu_seconds, -operator.cpu_seconds))


_profile: ContextVar[Profile | None] = ContextVar("eigen_profile", default=None)


@contextmanager
def profiled_to(profile_of_run: Profile | None) -> Iterator[None]:
    """Profile what is called inside the block; None: nothing."""
    token = _profile.set(profile_of_run)
    try:
        yield
    finally:
        _profile.reset(token)


@contextmanager
def profiled(phase: str, generation: int) -> Iterator[None]:
    """Profile the block as a phase, if its generation is to be profiled and the block does not fail."""
    wanted = _profile.get()
    if wanted is None or wanted.generation != generation:
        yield
        return
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    # On a GPU torch warns of events that it clears unless it accumulates them.
    with profile(activities=[ProfilerActivity.CPU, *gpu], acc_events=True) as taken:
        yield
    wanted.write(phase, taken)
