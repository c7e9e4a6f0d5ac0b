"""The memory plan of a run, from its sizes and a probe's measurements."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from eigen_core.checkpoint.store import is_remote
from eigen_core.common.errors import InputError
from eigen_core.common.text import BYTES_PER_MB, size
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.machine import shares_memory
from eigen_core.machine.gpu import visible_gpus
from eigen_core.machine.limits import Limit
from eigen_core.machine.threads import usable_cores
from eigen_core.planning.probe import Peak, ProbeFailure, ProbeResult
from eigen_core.planning.sizes import DiskPlan, Sizes, disk_plan

Phase = Literal["start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout"]
Device = Literal["cpu", "cuda"]
Holder = Literal["training", "driver", "workers"]

PHASES: tuple[Phase, ...] = ("start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")
_GENERATION = PHASES[2:]

_MB = 1_000_000
# Measured on Linux with glibc and torch 2.13 (CPU); `benchmarks/memoryplan.py` compares.
_TRAINING = 20 * _MB
_PROCESS = 350 * _MB
_WORKER = 265 * _MB
_PLOTS = 90 * _MB
_STAGING = 16 * _MB
_UPLOADS = 24 * _MB
# Not measured: values that others report for torch with CUDA 12.
_CUDA_HOST = 1_500 * _MB
_CUDA_CONTEXT = 600 * _MB
# Half of a process's address space on 64-bit Linux (bytes).
_MOST_ADDRESSES = 1 << 46


@dataclass(frozen=True)
class Part:
    """A part of a run's memory, and the phases that hold it.

    Attributes:
        device_holder: on a GPU, torch in the training process, CUDA's driver for that process, or the workers.
    """

    name: str
    host_bytes: int
    device_bytes: int
    phases: tuple[Phase, ...] = PHASES
    device_holder: Holder = "training"


@dataclass(frozen=True)
class Verdict:
    """Whether a peak fits below a limit.

    Attributes:
        peak_bytes, phase: the highest peak of all phases, and its phase.
        limit: the limit, less the memory that is kept free for safety.
        at_least: `peak_bytes` is a lower bound, since the run was not measured.
    """

    where: str
    peak_bytes: int
    phase: Phase
    limit: Limit
    at_least: bool = False

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit.bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes by which the peak exceeds the limit."""
        return max(self.peak_bytes - self.limit.bytes, 0)

    def __str__(self) -> str:
        missing = "" if self.fits else f": {size(self.missing_bytes)} are missing"
        if self.at_least and not self.fits:
            missing = ": that is too little"
        taken = f"{'at least ' if self.at_least else ''}{size(self.peak_bytes)} of {self.where} memory"
        return f"it takes {taken} at the peak, in phase {self.phase}, and may take {self.limit}{missing}"


@dataclass(frozen=True)
class Plan:
    """Memory of a run, by part and phase.

    Attributes:
        measured: result or failure of the run's probe; None if it was not probed. Without a result, the plan lacks the
            memory of computations.
    """

    device: Device
    parts: tuple[Part, ...]
    sizes: Sizes
    disk: DiskPlan
    measured: ProbeResult | ProbeFailure | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def nonresident_bytes(self) -> int:
        """Bytes of the replay's address space that never become resident.

        The run does not fill all slots, and a resume replaces an empty buffer.
        """
        row = self.sizes.row_bytes if self.device == "cpu" else torch.float32.itemsize
        return (2 * self.sizes.config.replay.capacity - self.sizes.rows_stored) * row

    def host_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the host, summed over all processes (bytes)."""
        return _sum(self.parts, phase).host

    def device_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the device (bytes); 0 without a GPU."""
        return _sum(self.parts, phase).device

    def held_on_device(self, phase: Phase, holder: Holder) -> int:
        """Bytes that one holder (`Part.device_holder`) has on the device at the peak of a phase."""
        return _sum([part for part in self.parts if part.device_holder == holder], phase).device

    def peak_phase(self, where: str = "host") -> Phase:
        return max(PHASES, key=self.host_bytes if where == "host" else self.device_bytes)

    @property
    def peak_host_bytes(self) -> int:
        """The highest peak on the host, summed over all processes (bytes)."""
        return self.host_bytes(self.peak_phase())

    @property
    def peak_device_bytes(self) -> int:
        return self.device_bytes(self.peak_phase("device"))

    @property
    def fits(self) -> bool:
        return all(verdict.fits for verdict in self.verdicts)

    def part_rows(self) -> list[dict[str, str | float]]:
        return [
            {
                "part": part.name,
                "host (MB)": round(part.host_bytes / BYTES_PER_MB, 1),
                "device (MB)": round(part.device_bytes / BYTES_PER_MB, 1),
                "phases": "all" if part.phases == PHASES else ", ".join(part.phases),
            }
            for part in self.parts
        ]

    def document(self) -> dict[str, object]:
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
            "measured": None if self.measured is None else asdict(self.measured),
        }


def _sum(parts: Iterable[Part], phase: Phase) -> Peak:
    held = [part for part in parts if phase in part.phases]
    return Peak(sum(part.host_bytes for part in held), sum(part.device_bytes for part in held))


def plan_of(
    config: Config,
    sizes: Sizes,
    measured: ProbeResult | ProbeFailure | None = None,
    *,
    limits: Mapping[str, Limit] | None = None,
    own_bytes: int = 0,
) -> Plan:
    """Return the memory that a run will take, without training.

    Args:
        measured: result or failure of the run's probe; None: it was not probed.
        limits: by `host` and `device`; a missing limit is not compared.
        own_bytes: resident memory of the training process before it trains; 0: unknown.

    Raises:
        InputError: the replay needs more address space than a process can have.
    """
    device = _device_of(config)
    addresses = config.replay.capacity * sizes.row_bytes
    if addresses > _MOST_ADDRESSES:
        raise InputError(
            f"replay.capacity {config.replay.capacity:,} needs {size(addresses)} of address space, and a process has "
            f"{size(_MOST_ADDRESSES)} at most: lower it. This run appends {sizes.rows_written:,} transitions."
        )
    found = measured if isinstance(measured, ProbeResult) else None
    parts = _Parts(config, sizes, found, device).all(own_bytes)
    plan = Plan(device, parts, sizes, disk_plan(config, sizes), measured)
    return replace(plan, verdicts=tuple(_verdict(plan, where, limit) for where, limit in (limits or {}).items()))


def _verdict(plan: Plan, where: str, limit: Limit) -> Verdict:
    known, phase = (plan.peak_host_bytes if where == "host" else plan.peak_device_bytes), plan.peak_phase(where)
    measured, peak = plan.measured, known
    if isinstance(measured, ProbeFailure):
        if measured.out_of_memory and (where == "host") == (plan.device == "cpu"):
            peak = max(peak, limit.bytes + 1)
        elif measured.reached_bytes and where == "host":
            peak = max(peak, measured.reached_bytes + _TRAINING + _PLOTS)
        if peak > known:
            phase = next(phase for phase in PHASES if phase == measured.phase)
    return Verdict(where, peak, phase, limit, at_least=not isinstance(measured, ProbeResult))


@dataclass(frozen=True)
class _Parts:
    """Makes the parts of a run; without a probe's result, only those that follow from its sizes."""

    config: Config
    sizes: Sizes
    measured: ProbeResult | None
    device: Device

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def all(self, own_bytes: int) -> tuple[Part, ...]:
        count = local_worker_count(self.config, self.device)
        elsewhere = count > 0 or self.config.scheduler is not None
        parts = [*self._held(own_bytes), *self._written()]
        parts += self._computed_elsewhere() if elsewhere else self._computed_here()
        parts += self._workers(count) if count else []
        return tuple(part for part in parts if part.host_bytes or part.device_bytes)

    def _tensors(self, amount: int) -> Peak:
        return Peak(0, amount) if self.cuda else Peak(amount)

    def _held(self, own_bytes: int) -> list[Part]:
        """Return the memory that the run holds throughout, and the memory of its start and of a resume."""
        sizes, measured, rows, row = self.sizes, self.measured, self.sizes.rows_stored, self.sizes.row_bytes
        population, capacity = sizes.population_bytes, self.config.replay.capacity * row
        if measured is None:
            process, training, starting = max(_PROCESS, own_bytes) + self.cuda * _CUDA_HOST, 0, Peak(0)
        else:
            process, training = measured.process, max(_TRAINING, own_bytes - measured.process)
            starting = measured.phases["start"].excess_over(measured.started)
        # Empty slots of the replay take no memory on the host; a GPU allocates all of them.
        replay = Part("replay", torch.float32.itemsize * rows, capacity) if self.cuda else None
        # A resume holds the checkpoint's replay and population as well as those that they replace.
        replaced = capacity + population if self.cuda else 0
        return [
            Part("process", process, 0),
            Part("training", training, 0),
            Part("CUDA", 0, self.cuda * _CUDA_CONTEXT, device_holder="driver"),
            Part("data", *self._data()),
            Part("population", *self._tensors(population)),
            replay or Part("replay", rows * row, 0, _GENERATION),
            Part("starting", *starting, ("start",)),
            Part("loaded", sizes.replay_bytes + population, replaced, ("resume",)),
        ]

    def _data(self) -> Peak:
        """Return the memory of data and task: as counted, or, as probed, all but the population and a GPU's replay."""
        sizes = self.sizes
        if self.measured is None:
            return Peak(sizes.data_bytes, self.cuda * sizes.data_bytes)
        replay = self.cuda * self.config.replay.capacity * sizes.row_bytes
        return self.measured.started.excess_over(self._tensors(sizes.population_bytes + replay))

    def _computed_here(self) -> list[Part]:
        sizes, measured, agents = self.sizes, self.measured, self.config.population.size
        if measured is None:
            copied = sizes.population_bytes if sizes.learning_agents else 0
            return [
                Part("learning", *self._tensors(copied), ("train",)),
                Part("breeding", *self._tensors(sizes.population_bytes), ("evolve",)),
            ]
        # The last group plays while the transitions of the others are held; all are concatenated at the end.
        recorded = sizes.rows_per_generation * sizes.row_bytes
        played, others = measured.phases["evaluate"], self._tensors(recorded * (agents - measured.playing) // agents)
        joined = self._tensors(2 * recorded)
        evaluation = max(played.host + others.host, joined.host), max(played.device + others.device, joined.device)
        parts = [
            Part("evaluation", *evaluation, ("evaluate",)),
            Part("learning", *measured.phases["train"], ("train",)),
            Part("breeding", *measured.phases["evolve"], ("evolve",)),
        ]
        if self.config.holds_out:
            # The initial population plays too.
            weights, settings = self._tensors(sizes.champion_bytes * agents), self.config.evaluation
            held = played.times(settings.holdout_episodes / (settings.slices + settings.fixed_episodes))
            parts.append(Part("holdout", weights.host + held.host, weights.device + held.device, ("holdout",)))
        return parts

    def _computed_elsewhere(self) -> list[Part]:
        """Return the memory of the run's own process while workers compute."""
        sizes, population = self.sizes, self.sizes.population_bytes
        recorded = 2 * sizes.rows_per_generation * sizes.row_bytes
        # The serialized replay, or its largest column while it moves to memory that local workers share.
        sent = self.config.scheduler is not None or not shares_memory(self.device)
        moved = sizes.replay_bytes if sent else sizes.rows_stored * sizes.column_bytes
        learning = 2 * population + moved if sizes.learning_agents else 0
        return [
            Part("evaluation", *self._tensors(recorded), ("evaluate",)),
            Part("learning", *self._tensors(learning), ("train",)),
            Part("breeding", *self._tensors(population), ("evolve",)),
        ]

    def _workers(self, count: int) -> list[Part]:
        """Return the host memory of all local workers, and the device memory of those on one GPU."""
        sizes, measured, data = self.sizes, self.measured, self._tensors(self.sizes.data_bytes)
        holding = -(-count // max(len(visible_gpus()), 1)) if self.cuda else count
        share = -(-self.config.population.size // count)

        def part(name: str, each: Peak, *phases: Phase) -> Part:
            sums = count * each.host, holding * each.device
            return Part(f"workers' {name}", *sums, phases or PHASES, device_holder="workers")

        copies = 0 if shares_memory(self.device) else sizes.replay_bytes
        parts = [
            part("processes", Peak(_WORKER + self.cuda * _CUDA_HOST, self.cuda * _CUDA_CONTEXT)),
            part("replays", self._tensors(copies), *_GENERATION),
            # One copy as received, one as computed.
            part("agents", self._tensors(2 * share * sizes.agent_bytes), *_GENERATION),
        ]
        if measured is not None:
            data = Peak(0, self._data().device) if self.cuda else self._data()
            played = measured.phases["evaluate"].times(min(share / measured.playing, 1.0))
            learned = measured.phases["train"].excess_over(self._tensors(sizes.population_bytes))
            learned = learned.times(min(share / max(measured.learning, 1), 1.0))
            parts += [part("evaluation", played, "evaluate"), part("learning", learned, "train")]
        return [*parts, part("data", data)]

    def _written(self) -> list[Part]:
        sizes, config = self.sizes, self.config
        # The largest tensor that is copied from the device to the host for hashing or writing.
        largest = max(sizes.champion_bytes * config.population.size, sizes.rows_stored * sizes.column_bytes)
        return [
            Part("checkpoint staging", _STAGING, 0, ("checkpoint",)),
            Part("plots", _PLOTS, 0, _GENERATION),
            Part("staging from the device", self.cuda * 2 * largest, 0, ("evolve", "checkpoint")),
            *(
                Part(f"tracker {name}", tracker_class(name).memory_bytes, 0)
                for name in dict.fromkeys(config.reporting.trackers)
            ),
            Part("upload queue", is_remote(config.checkpoint.store) * _UPLOADS, 0, _GENERATION),
        ]


def _device_of(config: Config) -> Device:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device


def local_worker_count(config: Config, device: Literal["cpu", "cuda"]) -> int:
    """Return the number of local worker processes of a run whose tensors live on `device`."""
    if config.workers != "auto":
        return config.workers
    if device == "cuda":
        gpus = len(visible_gpus())
        return min(gpus, config.population.size) if gpus > 1 else 0
    cores = usable_cores()
    return min(cores, config.population.size) if cores > 1 else 0
