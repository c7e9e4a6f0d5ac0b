"""The memory plan of a run: what a probe has measured of it, and what can be counted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from eigen_core.checkpoint.store import is_remote
from eigen_core.common.errors import InputError
from eigen_core.common.text import BYTES_PER_MB, size
from eigen_core.config import Config
from eigen_core.config.values import tracker_class
from eigen_core.machine import shares_memory
from eigen_core.machine.gpu import visible_gpus
from eigen_core.machine.threads import usable_cores
from eigen_core.planning.probe import Peak, ProbeFailure, ProbeResult
from eigen_core.planning.sizes import DiskPlan, Sizes, disk_plan

Phase = Literal["start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout"]
Device = Literal["cpu", "cuda"]
Holder = Literal["training", "driver", "workers"]

PHASES: tuple[Phase, ...] = ("start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")
_GENERATION: tuple[Phase, ...] = ("evaluate", "train", "evolve", "checkpoint", "plot", "holdout")

_MB = 1_000_000
# Measured on Linux with glibc and torch 2.13 (CPU); `benchmarks/memoryplan.py` compares.
_TRAINING = 20 * _MB
_PROCESS = 350 * _MB
_WORKER = 265 * _MB
_PLOTS = 90 * _MB
_STAGING = 16 * _MB
_UPLOADS = 24 * _MB
# Not measured: what others report of torch with CUDA 12.
_CUDA_HOST = 1_500 * _MB
_CUDA_CONTEXT = 600 * _MB
# Half of the addresses that Linux gives a process on 64-bit processors.
_MOST_ADDRESSES = 1 << 46
_MORE_WORKERS = 4


@dataclass(frozen=True)
class Part:
    """Something that takes memory.

    Attributes:
        name: the part.
        host_bytes, device_bytes: its size on the host and on a GPU (bytes).
        how: a sentence that says how that is known.
        phases: when it is there.
        device_holder: what holds it on a GPU: torch in the process of the training, CUDA's driver for that process, or
            the workers.
    """

    name: str
    host_bytes: int
    device_bytes: int
    how: str
    phases: tuple[Phase, ...] = PHASES
    device_holder: Holder = "training"


@dataclass(frozen=True)
class Limit:
    """Limit of a run's memory.

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
        at_least: the peak is at least so much: part of it is not known.
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
    """Memory of a run, by part and phase.

    Attributes:
        device: where its tensors live.
        parts: what takes memory.
        disk: what it writes.
        unwritten_bytes: addresses of replay slots with no memory behind them: those that the run does not come to
            write, and those of the empty buffer that a resume replaces.
        measured: what its probe has measured, or why it has not; None: it was not asked, and the parts are only those
            that can be counted, without what the phases compute with.
        verdicts: one for each limit that was given.
        rows_per_generation, rows_stored: transitions that a generation appends to the replay, and in it at the end.
    """

    device: Device
    parts: tuple[Part, ...]
    disk: DiskPlan
    unwritten_bytes: int
    rows_per_generation: int
    rows_stored: int
    measured: ProbeResult | ProbeFailure | None = None
    verdicts: tuple[Verdict, ...] = ()

    def host_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the host (bytes), all processes together."""
        return sum(part.host_bytes for part in self._in(phase))

    def device_bytes(self, phase: Phase) -> int:
        """The peak of a phase on the device (bytes); 0 without a GPU."""
        return sum(part.device_bytes for part in self._in(phase))

    def held_on_device(self, phase: Phase, holder: Holder) -> int:
        """Share of one holder (`Part.device_holder`) in the peak of a phase on the device (bytes)."""
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

    @property
    def tensors_where(self) -> str:
        """`host` or `device`: where its tensors live."""
        return "host" if self.device == "cpu" else "device"

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


def plan_of(
    config: Config,
    sizes: Sizes,
    measured: ProbeResult | ProbeFailure | None = None,
    *,
    device: Device | None = None,
    limits: Mapping[str, Limit] | None = None,
) -> Plan:
    """Return what a run will take, without training.

    Args:
        config: the run.
        sizes: what was counted of it.
        measured: what its probe has measured, or why it has not; None: it was not asked.
        device: where its tensors will live; None: what `config.device` asks for here.
        limits: what it may take on `host` and `device`; what is not given is not compared.

    Raises:
        InputError: no process could have the addresses of a replay of this capacity.
    """
    chosen = _device_of(config) if device is None else device
    _require_addresses(sizes)
    row = sizes.row_bytes if chosen == "cpu" else torch.float32.itemsize
    unwritten = (2 * config.replay.capacity - sizes.rows_stored) * row
    found = measured if isinstance(measured, ProbeResult) else None
    plan = Plan(
        device=chosen,
        parts=tuple(_Parts(config, sizes, found, chosen).all()),
        disk=disk_plan(config, sizes),
        unwritten_bytes=unwritten,
        rows_per_generation=sizes.rows_per_generation,
        rows_stored=sizes.rows_stored,
        measured=measured,
    )
    return replace(plan, verdicts=tuple(_verdict(plan, where, limit) for where, limit in (limits or {}).items()))


def _verdict(plan: Plan, where: str, limit: Limit) -> Verdict:
    peak, phase = (plan.peak_host_bytes if where == "host" else plan.peak_device_bytes), plan.peak_phase(where)
    measured = plan.measured
    if isinstance(measured, ProbeFailure):
        known = peak
        if measured.out_of_memory and where == plan.tensors_where:
            peak = max(peak, limit.bytes + 1)
        elif measured.reached_bytes and where == "host":
            peak = max(peak, measured.reached_bytes + _TRAINING + _PLOTS)
        if peak > known:
            phase = next(phase for phase in PHASES if phase == measured.phase)
    return Verdict(where, peak, phase, limit, at_least=not isinstance(measured, ProbeResult))


@dataclass(frozen=True)
class WorkerPlan:
    """Memory of one worker of a scheduler, on another machine than the process that leads (bytes).

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


def worker_plans(config: Config, sizes: Sizes, measured: ProbeResult) -> list[WorkerPlan]:
    """Return what a worker of the run's scheduler takes as one of 1, 4, 16 and so on, at most one an agent.

    The scheduler is not asked. Empty if the run names none.
    """
    if config.scheduler is None:
        return []
    parts, plans, workers = _Parts(config, sizes, measured, _device_of(config)), [], 1
    while workers <= config.population.size:
        held = [[part for part in parts.workers(1, workers) if phase in part.phases] for phase in PHASES]
        host = max(sum(part.host_bytes for part in of_phase) for of_phase in held)
        device = max(sum(part.device_bytes for part in of_phase) for of_phase in held)
        # Where one process can read another's memory, the parts have no replay on the host of a worker.
        host += sizes.replay_bytes if shares_memory(parts.device) else 0
        plans.append(WorkerPlan(workers, host, device, sizes.replay_bytes))
        workers *= _MORE_WORKERS
    return plans


@dataclass(frozen=True)
class _Parts:
    """Makes the parts of a run; without what a probe has measured only those that can be counted."""

    config: Config
    sizes: Sizes
    measured: ProbeResult | None
    device: Device

    def all(self) -> list[Part]:
        """Return all parts that take anything."""
        parts = [*self._processes(), *self._agents(), *self._resuming(), *self._leaving()]
        count = local_worker_count(self.config, self.device)
        elsewhere = count > 0 or self.config.scheduler is not None
        parts += self._computed_elsewhere() if elsewhere else self._computed_here()
        if count:
            parts += self.workers(count, count)
        return [part for part in parts if part.host_bytes or part.device_bytes]

    def _tensors(self, name: str, amount: int, how: str, phases: tuple[Phase, ...] = PHASES) -> Part:
        """A part that consists of tensors, which live where the run computes."""
        return Part(name, *((amount, 0) if self.device == "cpu" else (0, amount)), how, phases)

    def _processes(self) -> list[Part]:
        measured, cuda = self.measured, self.device == "cuda"
        if measured is None:
            how = "Python with torch, pandas and a flow of Prefect under way."
            parts = [Part("process", _PROCESS + cuda * _CUDA_HOST, 0, how)]
        else:
            parts = [
                Part("process", measured.process, 0, "Python with torch and pandas: measured by the probe."),
                Part("training", _TRAINING, 0, "The code of a training, its guard and threads, or a flow of Prefect."),
            ]
        if cuda:
            how = "CUDA's context on the device: assumed, not measured."
            parts.append(Part("CUDA", 0, _CUDA_CONTEXT, how, device_holder="driver"))
        return parts

    def _agents(self) -> list[Part]:
        sizes, measured, population = self.sizes, self.measured, self.sizes.population_bytes
        capacity, row, rows = self.config.replay.capacity, sizes.row_bytes, sizes.rows_stored
        if self.device == "cpu":
            how = (
                f"{rows:,} transitions of {row:,} bytes: what {self.config.generations:,} generations append, at most "
                f"its capacity of {capacity:,}; what was never written takes nothing."
            )
            replay = Part("replay", rows * row, 0, how, _GENERATION)
            data = Peak(sizes.data_bytes) if measured is None else Peak(measured.started.host - population)
        else:
            how = f"Its capacity of {capacity:,} transitions of {row:,} bytes."
            replay = Part("replay", torch.float32.itemsize * rows, capacity * row, how)
            data = Peak(sizes.data_bytes, sizes.data_bytes)
            if measured is not None:
                data = Peak(measured.started.host, measured.started.device - population - capacity * row)
        how = "Its tensors and arrays." if measured is None else "It and what is made of it: measured by the probe."
        agents = (
            f"{self.config.population.size} agents of {sizes.agent_bytes:,} bytes each: {sizes.parameters:,} weights"
        )
        parts = [
            Part("data", max(data.host, 0), max(data.device, 0), how),
            self._tensors("population", population, f"{agents}, and what the learner keeps beside them."),
            replay,
        ]
        if measured is not None:
            start = measured.phases["start"]
            above = (max(start.host - measured.started.host, 0), max(start.device - measured.started.device, 0))
            parts.append(Part("starting", *above, "What is made to build these: measured by the probe.", ("start",)))
        return parts

    def _resuming(self) -> list[Part]:
        """Memory of a run that goes on from a checkpoint, before its first generation."""
        population, replay = self.sizes.population_bytes, self.sizes.replay_bytes
        if self.device == "cpu":
            how = "Replay and population of the checkpoint, beside the population that they replace."
            return [Part("loaded", replay + population, 0, how, ("resume",))]
        how = "Replay and population of the checkpoint on the host, and what they replace on the device."
        replaced = self.config.replay.capacity * self.sizes.row_bytes + population
        return [Part("loaded", replay + population, replaced, how, ("resume",))]

    def _computed_here(self) -> list[Part]:
        sizes, measured, config = self.sizes, self.measured, self.config
        population = sizes.population_bytes
        if measured is None:
            copied = population if sizes.learning_agents else 0
            return [
                self._tensors("learning", copied, "The copy of the population that learns.", ("train",)),
                self._tensors("breeding", population, "The population that is bred.", ("evolve",)),
            ]
        recorded = sizes.rows_per_generation * sizes.row_bytes
        of_others = recorded * (config.population.size - measured.playing) // config.population.size
        play = measured.phases["evaluate"]
        evaluation = config.evaluation
        share = evaluation.holdout_episodes / (evaluation.slices + evaluation.fixed_episodes)
        held_out = Peak(int(play.host * share), int(play.device * share)) if config.holds_out else Peak(0)
        weights = self._tensors("", sizes.champion_bytes * config.population.size if config.holds_out else 0, "")
        return [
            self._at_least(
                Part(
                    "evaluation",
                    play.host + (of_others if self.device == "cpu" else 0),
                    play.device + (of_others if self.device == "cuda" else 0),
                    f"{measured.playing} of {config.population.size} agents at a time play, with the transitions that "
                    "the others have recorded: measured by the probe.",
                    ("evaluate",),
                ),
                2 * recorded,
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
                weights.host_bytes + held_out.host,
                weights.device_bytes + held_out.device,
                f"As evaluation, of {evaluation.holdout_episodes} episodes, with the weights that the run began with.",
                ("holdout",),
            ),
        ]

    def _at_least(self, part: Part, amount: int) -> Part:
        """Return a part that has at least so many bytes of tensors."""
        if self.device == "cpu":
            return replace(part, host_bytes=max(part.host_bytes, amount))
        return replace(part, device_bytes=max(part.device_bytes, amount))

    def _computed_elsewhere(self) -> list[Part]:
        """Memory of the process that leads while workers compute."""
        sizes, population = self.sizes, self.sizes.population_bytes
        recorded = sizes.rows_per_generation * sizes.row_bytes
        sent = self.config.scheduler is not None or not shares_memory(self.device)
        moved = sizes.replay_bytes if sent else sizes.rows_stored * sizes.column_bytes
        how = (
            "The copy of the population that has learned, as it comes back, and the replay: as it is sent, or its "
            "largest column as it moves to where workers of this machine read it."
        )
        return [
            self._tensors(
                "evaluation", 2 * recorded, "What workers have recorded, as it comes, joined.", ("evaluate",)
            ),
            self._tensors("learning", 2 * population + moved if sizes.learning_agents else 0, how, ("train",)),
            self._tensors("breeding", population, "The population that is bred.", ("evolve",)),
        ]

    def workers(self, count: int, among: int) -> list[Part]:
        """Return what workers on one machine take, all together on its host, and on a GPU those that share it.

        Args:
            count: how many they are.
            among: how many share the agents.
        """
        sizes, measured = self.sizes, self.measured
        holding = count if self.device == "cpu" else most_on_one_gpu(count)
        share = -(-self.config.population.size // among)

        def part(name: str, each: Peak, how: str, *phases: Phase) -> Part:
            holder: Holder = "workers"
            sums = count * each.host, holding * each.device
            return Part(f"workers' {name}", *sums, how, phases or PHASES, device_holder=holder)

        def tensors(amount: int) -> Peak:
            return Peak(amount) if self.device == "cpu" else Peak(0, amount)

        cuda = Peak(_CUDA_HOST, _CUDA_CONTEXT) if self.device == "cuda" else Peak(0)
        copies = Peak(0) if shares_memory(self.device) else tensors(sizes.replay_bytes)
        data = tensors(sizes.data_bytes)
        parts = [
            part("processes", Peak(_WORKER + cuda.host, cuda.device), f"{count} of Python with torch and Dask."),
            part("replays", copies, "A copy of the replay in each.", *_GENERATION),
            part("agents", tensors(2 * share * sizes.agent_bytes), "Their share, as sent and computed.", *_GENERATION),
        ]
        if measured is not None:
            started, population = measured.started, sizes.population_bytes
            replay = self.config.replay.capacity * sizes.row_bytes
            data = Peak(max(started.host - population, 0))
            if self.device == "cuda":
                data = Peak(0, max(started.device - population - replay, 0))
            play, learn = measured.phases["evaluate"], measured.phases["train"]
            playing = min(share / measured.playing, 1.0)
            learning = min(share / max(measured.learning, 1), 1.0)
            own = tensors(population)
            learn = Peak(max(learn.host - own.host, 0), max(learn.device - own.device, 0))
            how = "As measured by the probe, of a share of the agents."
            parts += [
                part("evaluation", Peak(*(int(playing * held) for held in play)), how, "evaluate"),
                part("learning", Peak(*(int(learning * held) for held in learn)), how, "train"),
            ]
        return [*parts, part("data", data, f"In each of {count}.")]

    def _leaving(self) -> list[Part]:
        """Memory of checkpoints, uploads, plots and trackers."""
        sizes, config = self.sizes, self.config
        how = "Blocks of at most 8 MB that are compressed, hashed and written, two at a time."
        parts = [
            Part("checkpoint staging", _STAGING, 0, how, ("checkpoint",)),
            Part("plots", _PLOTS, 0, "The process that draws, beside the next generation or the last.", _GENERATION),
        ]
        if self.device == "cuda":
            how = "The largest tensor that is brought to the host to be hashed or written."
            matrix = sizes.champion_bytes * config.population.size
            largest = max(matrix, sizes.rows_stored * sizes.column_bytes)
            parts.append(Part("staging from the device", 2 * largest, 0, how, ("evolve", "checkpoint")))
        for name in dict.fromkeys(config.reporting.trackers):
            amount = tracker_class(name).memory_bytes
            parts.append(Part(f"tracker {name}", amount, 0, "Its packages, and what it writes with."))
        if is_remote(config.checkpoint.store):
            how = "Blocks of 8 MB on their way; generations that wait lie on disk, not in memory."
            parts.append(Part("upload queue", _UPLOADS, 0, how, _GENERATION))
        return parts


def most_on_one_gpu(count: int) -> int:
    """Return how many of so many workers of this machine share a GPU, at most; each has one of those there are."""
    return -(-count // max(len(visible_gpus()), 1))


def _require_addresses(sizes: Sizes) -> None:
    capacity = sizes.config.replay.capacity
    asked = capacity * sizes.row_bytes
    if asked > _MOST_ADDRESSES:
        raise InputError(
            f"replay.capacity {capacity:,} asks for {size(asked)} of addresses, and no process can have more than "
            f"{size(_MOST_ADDRESSES)}: lower it. This run appends {sizes.rows_written:,} transitions."
        )


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
