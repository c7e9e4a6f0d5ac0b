"""The memory plan: what a run will take, before it starts, and whether that fits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.memory import shares_memory
from eigen_core.needs import SINGLE, Facts
from eigen_core.planning.disk import DiskPlan, disk_plan
from eigen_core.planning.parts import PHASES, Device, Holder, Part, Phase, parts_of, worker_parts
from eigen_core.planning.scale import Scale
from eigen_core.units import BYTES_PER_MB, size

# Half of the addresses that Linux gives a process on 64-bit processors.
_MOST_ADDRESSES = 1 << 46
_MORE_WORKERS = 4


@dataclass(frozen=True)
class Limit:
    """What a run may take.

    Attributes:
        bytes: so much, what is kept free for safety already taken off.
        origin: in words, where that comes from: "93 % of 24.0 GB, the machine's memory".
    """

    bytes: int
    origin: str


@dataclass(frozen=True)
class Verdict:
    """Whether a peak fits below a limit.

    Attributes:
        where: `host` or `device`.
        peak_bytes: the highest of all phases.
        phase: the phase of that peak.
        limit: what there is.
    """

    where: str
    peak_bytes: int
    phase: Phase
    limit: Limit

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the limit."""
        return self.peak_bytes <= self.limit.bytes

    @property
    def missing_bytes(self) -> int:
        """By how much it does not (bytes)."""
        return max(self.peak_bytes - self.limit.bytes, 0)

    def __str__(self) -> str:
        """The verdict as a sentence."""
        need = f"{self.where}: {size(self.peak_bytes)} at the peak, in phase {self.phase}"
        there = f"{size(self.limit.bytes)} ({self.limit.origin})"
        if self.fits:
            return f"{need}, fits into {there}."
        return f"{need}, does not fit into {there}: {size(self.missing_bytes)} are missing."


@dataclass(frozen=True)
class Plan:
    """What a run takes, by part and phase.

    Attributes:
        device: where its tensors live.
        parts: what takes memory.
        disk: what it writes.
        unwritten_bytes: addresses of replay slots with no memory behind them: those that the run does not come to
            write, and those of the empty buffer that a resume replaces.
        verdicts: one for each limit that was given.
    """

    device: Device
    parts: tuple[Part, ...]
    disk: DiskPlan
    unwritten_bytes: int
    verdicts: tuple[Verdict, ...] = ()

    def host_bytes(self, phase: Phase, *, server: bool = True) -> int:
        """The peak of a phase on the host (bytes), all processes together or, without `server`, of the training's."""
        return sum(part.host_bytes for part in self._in(phase) if server or not part.server)

    def device_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the device (bytes); 0 without a GPU."""
        return sum(part.device_bytes for part in self._in(phase))

    def held_on_device(self, phase: Phase, holder: Holder) -> int:
        """What one holder (`Part.device_holder`) has of the peak of a phase on the device (bytes)."""
        return sum(part.device_bytes for part in self._in(phase) if part.device_holder == holder)

    def _in(self, phase: Phase) -> list[Part]:
        return [part for part in self.parts if phase in part.phases]

    def peak_phase(self, where: str = "host") -> Phase:
        """The phase with the highest peak, on the host or on the device."""
        return max(PHASES, key=self.host_bytes if where == "host" else self.device_bytes)

    @property
    def peak_host_bytes(self) -> int:
        """The highest peak on the host, all processes together (bytes)."""
        return self.host_bytes(self.peak_phase())

    @property
    def peak_device_bytes(self) -> int:
        """The highest peak on the device (bytes)."""
        return self.device_bytes(self.peak_phase("device"))

    @property
    def fits(self) -> bool:
        """Whether it fits below all limits that were given."""
        return all(verdict.fits for verdict in self.verdicts)

    def largest(self, where: str = "host") -> tuple[Part, ...]:
        """The parts that make up the highest peak, the largest first."""
        parts = self._in(self.peak_phase(where))
        return tuple(sorted(parts, key=lambda part: -(part.host_bytes if where == "host" else part.device_bytes)))

    def part_rows(self) -> list[dict[str, str | float]]:
        """The parts as rows of a table, sizes in MB."""
        return [
            {
                "part": part.name,
                "host (MB)": round(part.host_bytes / BYTES_PER_MB, 1),
                "device (MB)": round(part.device_bytes / BYTES_PER_MB, 1),
                "phases": "all" if part.phases == PHASES else ", ".join(part.phases),
                "how": part.how,
            }
            for part in self.parts
        ]

    def document(self) -> dict[str, object]:
        """The plan as what JSON can hold, sizes in bytes."""
        return {
            "device": self.device,
            "peak_host_bytes": self.peak_host_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "fits": self.fits,
            "verdicts": [
                {
                    "where": verdict.where,
                    "phase": verdict.phase,
                    "peak_bytes": verdict.peak_bytes,
                    "limit_bytes": verdict.limit.bytes,
                    "origin": verdict.limit.origin,
                    "fits": verdict.fits,
                    "missing_bytes": verdict.missing_bytes,
                }
                for verdict in self.verdicts
            ],
            "phases": {
                phase: {"host_bytes": self.host_bytes(phase), "device_bytes": self.device_bytes(phase)}
                for phase in PHASES
            },
            "parts": [{**asdict(part), "phases": list(part.phases)} for part in self.parts],
            "disk": asdict(self.disk),
        }


def plan_of(
    config: Config,
    facts: Facts,
    *,
    device: Device | None = None,
    server: bool = True,
    limits: Mapping[str, Limit] | None = None,
) -> Plan:
    """Return what a run will take, without training.

    Args:
        config: the run.
        facts: of the data that it is trained on.
        device: where its tensors will live; None: what `config.device` asks for here.
        server: Prefect's embedded server runs beside it and counts.
        limits: what it may take on `host` and `device`; what is not given is not compared.

    Raises:
        InputError: no process could have the addresses of a replay of this capacity.
    """
    chosen = _device_of(config) if device is None else device
    # What is computed at a time may depend on it.
    scale = Scale.of(config.model_copy(update={"device": chosen}), facts)
    _require_addresses(scale)
    unwritten = (2 * config.replay.capacity - scale.rows_stored) * (scale.row_bytes if chosen == "cpu" else SINGLE)
    plan = Plan(chosen, parts_of(scale, chosen, server=server), disk_plan(scale), unwritten)
    verdicts = []
    for where, limit in (limits or {}).items():
        peak = plan.peak_host_bytes if where == "host" else plan.peak_device_bytes
        verdicts.append(Verdict(where, peak, plan.peak_phase(where), limit))
    return replace(plan, verdicts=tuple(verdicts))


@dataclass(frozen=True)
class WorkerPlan:
    """What one worker of a scheduler takes, on another machine than the process that leads (bytes).

    Attributes:
        workers: how many share the agents.
        host_bytes: the peak on its machine, with the replay.
        device_bytes: the peak on its GPU.
        replay_bytes: the replay on its machine, which one worker keeps there for all.
    """

    workers: int
    host_bytes: int
    device_bytes: int
    replay_bytes: int


def worker_plans(config: Config, facts: Facts) -> list[WorkerPlan]:
    """Return what a worker of the run's scheduler takes as one of 1, 4, 16 and so on, at most one an agent.

    The scheduler is not asked. Empty if the run names none.
    """
    if config.scheduler is None:
        return []
    device = _device_of(config)
    scale = Scale.of(config.model_copy(update={"device": device}), facts)
    replay = scale.rows_stored * scale.row_bytes
    plans = []
    workers = 1
    while workers <= config.population.size:
        plan = Plan(device, tuple(worker_parts(scale, device, 1, workers)), disk_plan(scale), 0)
        # Where one process can read another's memory, the parts have no replay on the host of a worker.
        host = plan.peak_host_bytes + (replay if shares_memory(device) else 0)
        plans.append(WorkerPlan(workers, host, plan.peak_device_bytes, replay))
        workers *= _MORE_WORKERS
    return plans


def _require_addresses(scale: Scale) -> None:
    capacity = scale.config.replay.capacity
    asked = capacity * scale.row_bytes
    if asked > _MOST_ADDRESSES:
        raise InputError(
            f"replay.capacity {capacity:,} asks for {size(asked)} of addresses, and no process can have more than "
            f"{size(_MOST_ADDRESSES)}: lower it. This run appends {scale.rows_written:,} transitions."
        )


def _device_of(config: Config) -> Device:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device
