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
# Not measured: as others report of torch with CUDA 12.
_CUDA_HOST = 1_500 * _MB
_CUDA_CONTEXT = 600 * _MB
# Half of the addresses that Linux gives a process on 64-bit processors.
_MOST_ADDRESSES = 1 << 46
_MORE_WORKERS = 4


@dataclass(frozen=True)
class Part:
    """A part of the memory of a run, in the phases in which it is there.

    Attributes:
        how: a sentence that says how the size is known.
        device_holder: holder on a GPU: torch in the process of the training, CUDA's driver for that process, or the
            workers.
    """

    name: str
    host_bytes: int
    device_bytes: int
    how: str
    phases: tuple[Phase, ...] = PHASES
    device_holder: Holder = "training"


@dataclass(frozen=True)
class Verdict:
    """Whether a peak fits below a limit.

    Attributes:
        where: `host` or `device`.
        peak_bytes, phase: the highest of all phases.
        limit: the limit, less the memory that is kept free for safety.
        at_least: part of the peak is not known.
    """

    where: str
    peak_bytes: int
    phase: Phase
    limit: Limit
    at_least: bool = False

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the limit."""
        return self.peak_bytes <= self.limit.bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes of the peak above the limit."""
        return max(self.peak_bytes - self.limit.bytes, 0)

    def __str__(self) -> str:
        """The verdict as a part of a sentence."""
        missing = "" if self.fits else f": {size(self.missing_bytes)} are missing"
        if self.at_least and not self.fits:
            missing = ": that is too little"
        taken = f"{'at least ' if self.at_least else ''}{size(self.peak_bytes)} of the {self.where}"
        return f"it takes {taken} at the peak, in phase {self.phase}, and may take {self.limit}{missing}"


@dataclass(frozen=True)
class Plan:
    """Memory of a run, by part and phase.

    Attributes:
        device: where its tensors live.
        measured: result of its probe, or why there is none; None: it was not probed, and lacks the memory of
            computations.
        verdicts: one for each limit that was given.
    """

    device: Device
    parts: tuple[Part, ...]
    sizes: Sizes
    disk: DiskPlan
    measured: ProbeResult | ProbeFailure | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def unwritten_bytes(self) -> int:
        """Addresses of replay slots with no memory behind them.

        The run does not come to write some slots, and a resume replaces an empty buffer.
        """
        row = self.sizes.row_bytes if self.device == "cpu" else torch.float32.itemsize
        return (2 * self.sizes.config.replay.capacity - self.sizes.rows_stored) * row

    def host_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the host (bytes), all processes together."""
        return _sum(self.parts, phase).host

    def device_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the device (bytes); 0 without a GPU."""
        return _sum(self.parts, phase).device

    def held_on_device(self, phase: Phase, holder: Holder) -> int:
        """Share of one holder (`Part.device_holder`) in the peak of a phase on the device (bytes)."""
        return _sum([part for part in self.parts if part.device_holder == holder], phase).device

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
        config, sizes: of the run.
        measured: result of its probe, or why there is none; None: it was not probed.
        limits: limits of `host` and `device`; those that are not given are not compared.
        own_bytes: resident memory of the process that will train, before it does; 0: not known.

    Raises:
        InputError: no process could have the addresses of a replay of this capacity.
    """
    device = _device_of(config)
    addresses = config.replay.capacity * sizes.row_bytes
    if addresses > _MOST_ADDRESSES:
        raise InputError(
            f"replay.capacity {config.replay.capacity:,} asks for {size(addresses)} of addresses, and no process can "
            f"have more than {size(_MOST_ADDRESSES)}: lower it. This run appends {sizes.rows_written:,} transitions."
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
class WorkerPlan:
    """Peaks of one of `workers` of a scheduler that share the agents, on its machine and GPU (bytes).

    The peak on the host has the replay, `replay_bytes`, which one worker keeps there for all.
    """

    workers: int
    host_bytes: int
    device_bytes: int
    replay_bytes: int


def worker_plans(config: Config, sizes: Sizes, measured: ProbeResult) -> list[WorkerPlan]:
    """Return the memory of a worker of the run's scheduler as one of 1, 4, 16 and so on, at most one an agent.

    The scheduler is not asked. Empty if the run names none.
    """
    if config.scheduler is None:
        return []
    parts, plans, workers = _Parts(config, sizes, measured, _device_of(config)), [], 1
    # Where one process can read another's memory, the parts have no replay on the host of a worker.
    replay = sizes.replay_bytes if shares_memory(parts.device) else 0
    while workers <= config.population.size:
        held = [_sum(parts.workers(1, workers), phase) for phase in PHASES]
        host, device = (max(amounts) for amounts in zip(*held, strict=True))
        plans.append(WorkerPlan(workers, host + replay, device, sizes.replay_bytes))
        workers *= _MORE_WORKERS
    return plans


@dataclass(frozen=True)
class _Parts:
    """Makes the parts of a run; without a probe's result only those that can be counted."""

    config: Config
    sizes: Sizes
    measured: ProbeResult | None
    device: Device

    def all(self, own_bytes: int) -> tuple[Part, ...]:
        """Return all parts that are not empty."""
        count = local_worker_count(self.config, self.device)
        elsewhere = count > 0 or self.config.scheduler is not None
        parts = [*self._process(own_bytes), *self._held(), *self._resumed(), *self._written()]
        parts += self._computed_elsewhere() if elsewhere else self._computed_here()
        parts += self.workers(count, count) if count else []
        return tuple(part for part in parts if part.host_bytes or part.device_bytes)

    def _tensors(self, amount: int) -> Peak:
        """Tensors that live where the run computes."""
        return Peak(amount) if self.device == "cpu" else Peak(0, amount)

    def _process(self, own_bytes: int) -> list[Part]:
        cuda = self.device == "cuda"
        if self.measured is None:
            process = max(_PROCESS, own_bytes) + cuda * _CUDA_HOST
            parts = [Part("process", process, 0, "Python with torch, pandas and the code of a training.")]
        else:
            process = self.measured.process
            how = "The code of a training, its guard and threads, and what else its process has loaded."
            parts = [
                Part("process", process, 0, "Python with torch and pandas: measured by the probe."),
                Part("training", max(_TRAINING, own_bytes - process), 0, how),
            ]
        if cuda:
            how = "CUDA's context on the device: assumed, not measured."
            parts.append(Part("CUDA", 0, _CUDA_CONTEXT, how, device_holder="driver"))
        return parts

    def _held(self) -> list[Part]:
        """Memory that the run holds from its start to its end."""
        sizes, measured, population = self.sizes, self.measured, self.sizes.population_bytes
        capacity, row, rows = self.config.replay.capacity, sizes.row_bytes, sizes.rows_stored
        if self.device == "cpu":
            how = (
                f"{rows:,} transitions of {row:,} bytes: what {self.config.generations:,} generations append, at most "
                f"its capacity of {capacity:,}; what was never written takes nothing."
            )
            replay = Part("replay", rows * row, 0, how, _GENERATION)
        else:
            how = f"Its capacity of {capacity:,} transitions of {row:,} bytes."
            replay = Part("replay", torch.float32.itemsize * rows, capacity * row, how)
        how = "Its tensors and arrays." if measured is None else "It and what is made of it: measured by the probe."
        agents = (
            f"{self.config.population.size} agents of {sizes.agent_bytes:,} bytes each: {sizes.parameters:,} weights, "
            "and what the learner keeps beside them."
        )
        parts = [
            Part("data", *self._data(), how),
            Part("population", *self._tensors(population), agents),
            replay,
        ]
        if measured is not None:
            above = measured.phases["start"].above(measured.started)
            parts.append(Part("starting", *above, "What is made to build these: measured by the probe.", ("start",)))
        return parts

    def _data(self) -> Peak:
        """Data and task: without a probe what was counted, else what a run holds beside population and replay."""
        sizes = self.sizes
        if self.measured is None:
            return Peak(sizes.data_bytes, 0 if self.device == "cpu" else sizes.data_bytes)
        replay = 0 if self.device == "cpu" else self.config.replay.capacity * sizes.row_bytes
        return self.measured.started.above(self._tensors(sizes.population_bytes + replay))

    def _resumed(self) -> list[Part]:
        """Memory of a run that goes on from a checkpoint, before its first generation."""
        loaded = self.sizes.replay_bytes + self.sizes.population_bytes
        if self.device == "cpu":
            how = "Replay and population of the checkpoint, beside the population that they replace."
            return [Part("loaded", loaded, 0, how, ("resume",))]
        how = "Replay and population of the checkpoint on the host, and what they replace on the device."
        replaced = self.config.replay.capacity * self.sizes.row_bytes + self.sizes.population_bytes
        return [Part("loaded", loaded, replaced, how, ("resume",))]

    def _computed_here(self) -> list[Part]:
        sizes, measured, config = self.sizes, self.measured, self.config
        if measured is None:
            copied = sizes.population_bytes if sizes.learning_agents else 0
            return [
                Part("learning", *self._tensors(copied), "The copy of the population that learns.", ("train",)),
                Part("breeding", *self._tensors(sizes.population_bytes), "The population that is bred.", ("evolve",)),
            ]
        recorded, agents = sizes.rows_per_generation * sizes.row_bytes, config.population.size
        of_others = self._tensors(recorded * (agents - measured.playing) // agents)
        played, least = measured.phases["evaluate"], self._tensors(2 * recorded)
        evaluation = config.evaluation
        share = evaluation.holdout_episodes / (evaluation.slices + evaluation.fixed_episodes) if config.holds_out else 0
        weights = self._tensors(sizes.champion_bytes * agents if config.holds_out else 0)
        return [
            Part(
                "evaluation",
                max(played.host + of_others.host, least.host),
                max(played.device + of_others.device, least.device),
                f"{measured.playing} of {agents} agents at a time play, with the transitions that the others have "
                "recorded: measured by the probe.",
                ("evaluate",),
            ),
            Part(
                "learning",
                *measured.phases["train"],
                f"A copy of the population, and gradient steps of {measured.learning} of {sizes.learning_agents} "
                "agents at a time: measured by the probe.",
                ("train",),
            ),
            Part("breeding", *measured.phases["evolve"], "The next population: measured by the probe.", ("evolve",)),
            Part(
                "holdout",
                weights.host + int(played.host * share),
                weights.device + int(played.device * share),
                f"As evaluation, of {evaluation.holdout_episodes} episodes, with the weights that the run began with.",
                ("holdout",),
            ),
        ]

    def _computed_elsewhere(self) -> list[Part]:
        """Memory of the process that leads while workers compute."""
        sizes, population = self.sizes, self.sizes.population_bytes
        recorded = 2 * sizes.rows_per_generation * sizes.row_bytes
        sent = self.config.scheduler is not None or not shares_memory(self.device)
        moved = sizes.replay_bytes if sent else sizes.rows_stored * sizes.column_bytes
        learning = 2 * population + moved if sizes.learning_agents else 0
        how = (
            "The copy of the population that has learned, as it comes back, and the replay: as it is sent, or its "
            "largest column as it moves to where workers of this machine read it."
        )
        recording = "The transitions that workers have recorded, as they come, joined."
        return [
            Part("evaluation", *self._tensors(recorded), recording, ("evaluate",)),
            Part("learning", *self._tensors(learning), how, ("train",)),
            Part("breeding", *self._tensors(population), "The population that is bred.", ("evolve",)),
        ]

    def workers(self, count: int, among: int) -> list[Part]:
        """Return the memory of `count` workers on one machine, and of those on one GPU; `among` share the agents."""
        sizes, measured = self.sizes, self.measured
        holding = count if self.device == "cpu" else -(-count // max(len(visible_gpus()), 1))
        share = -(-self.config.population.size // among)

        def part(name: str, each: Peak, how: str, *phases: Phase) -> Part:
            holder: Holder = "workers"
            sums = count * each.host, holding * each.device
            return Part(f"workers' {name}", *sums, how, phases or PHASES, device_holder=holder)

        cuda = Peak(_CUDA_HOST, _CUDA_CONTEXT) if self.device == "cuda" else Peak(0)
        copies = 0 if shares_memory(self.device) else sizes.replay_bytes
        agents = self._tensors(2 * share * sizes.agent_bytes)
        data = self._tensors(sizes.data_bytes)
        parts = [
            part("processes", Peak(_WORKER + cuda.host, cuda.device), f"{count} of Python with torch and Dask."),
            part("replays", self._tensors(copies), "A copy of the replay in each.", *_GENERATION),
            part("agents", agents, "Their share, as sent and computed.", *_GENERATION),
        ]
        if measured is not None:
            data = self._data() if self.device == "cpu" else Peak(0, self._data().device)
            played = measured.phases["evaluate"].times(min(share / measured.playing, 1.0))
            learned = measured.phases["train"].above(self._tensors(sizes.population_bytes))
            learned = learned.times(min(share / max(measured.learning, 1), 1.0))
            how = "As measured by the probe, of a share of the agents."
            parts += [part("evaluation", played, how, "evaluate"), part("learning", learned, how, "train")]
        return [*parts, part("data", data, f"In each of {count}.")]

    def _written(self) -> list[Part]:
        """Memory of checkpoints, uploads, plots and trackers."""
        sizes, config = self.sizes, self.config
        how = "Blocks of at most 8 MB that are compressed, hashed and written, two at a time."
        parts = [
            Part("checkpoint staging", _STAGING, 0, how, ("checkpoint",)),
            Part("plots", _PLOTS, 0, "The process that draws, beside the next generation or the last.", _GENERATION),
        ]
        if self.device == "cuda":
            how = "The largest tensor that is brought to the host to be hashed or written."
            largest = max(sizes.champion_bytes * config.population.size, sizes.rows_stored * sizes.column_bytes)
            parts.append(Part("staging from the device", 2 * largest, 0, how, ("evolve", "checkpoint")))
        for name in dict.fromkeys(config.reporting.trackers):
            amount = tracker_class(name).memory_bytes
            parts.append(Part(f"tracker {name}", amount, 0, "Its packages, and what it writes with."))
        if is_remote(config.checkpoint.store):
            how = "Blocks of 8 MB on their way; generations that wait lie on disk, not in memory."
            parts.append(Part("upload queue", _UPLOADS, 0, how, _GENERATION))
        return parts


def _device_of(config: Config) -> Device:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device


def local_worker_count(config: Config, device: Literal["cpu", "cuda"]) -> int:
    """Return how many worker processes a run starts on this machine, where its tensors live on `device`."""
    if config.workers != "auto":
        return config.workers
    if device == "cuda":
        gpus = len(visible_gpus())
        return min(gpus, config.population.size) if gpus > 1 else 0
    cores = usable_cores()
    return min(cores, config.population.size) if cores > 1 else 0
