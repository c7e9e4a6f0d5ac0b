"""The parts of a run's memory, from its sizes and a probe (a child process that computes a part of each phase)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from eigen_core.checkpoint.store_location import is_remote
from eigen_core.common.text import BYTES_PER_MB
from eigen_core.config import Config
from eigen_core.config.registry import tracker_class
from eigen_core.machine.allocation import shares_memory
from eigen_core.machine.gpu import visible_gpus
from eigen_core.machine.performance import usable_cores
from eigen_core.planning.probe import ProbeResult
from eigen_core.planning.sizes import Device, Memory, Sizes

Phase = Literal["start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout"]
Holder = Literal["training", "driver", "workers"]

PHASES: tuple[Phase, ...] = ("start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")
_GENERATION = PHASES[2:]

_MB = 1_000_000
# Measured on Linux with glibc and torch 2.13 (CPU); `benchmarks/memoryplan.py` compares plans with runs.
TRAINING_BYTES = 20 * _MB
PLOTS_BYTES = 90 * _MB
_PROCESS = 350 * _MB
_WORKER = 265 * _MB
_STAGING = 16 * _MB
_UPLOADS = 24 * _MB
# Not measured: values that others report for torch with CUDA 12.
CUDA_CONTEXT_BYTES = 600 * _MB
_CUDA_HOST = 1_500 * _MB


@dataclass(frozen=True)
class Part:
    """A part of a run's memory, and the phases that hold it; `device_holder`: who holds `device_bytes` on a GPU."""

    name: str
    host_bytes: int
    device_bytes: int
    phases: tuple[Phase, ...] = PHASES
    device_holder: Holder = "training"

    def row(self) -> dict[str, str | float]:
        """Return the part as a row of a table."""
        return {
            "part": self.name,
            "host (MB)": round(self.host_bytes / BYTES_PER_MB, 1),
            "device (MB)": round(self.device_bytes / BYTES_PER_MB, 1),
            "phases": "all" if self.phases == PHASES else ", ".join(self.phases),
        }


def peaks_of(parts: Iterable[Part]) -> dict[Phase, Memory]:
    """Return the peak memory of each phase: the sum of the parts that the phase holds."""
    peaks = dict.fromkeys(PHASES, Memory())
    for part in parts:
        for phase in part.phases:
            peaks[phase] = peaks[phase].plus(Memory(part.host_bytes, part.device_bytes))
    return peaks


def parts_of(sizes: Sizes, measured: ProbeResult | None = None, own_bytes: int = 0) -> tuple[Part, ...]:
    """Return the parts of a run's memory; without `measured`, only those that follow from its sizes.

    `own_bytes` is the resident memory of the training process before it trains, without the data; 0: unknown.
    """
    workers = local_worker_count(sizes.config, sizes.device)
    elsewhere = workers > 0 or sizes.config.scheduler is not None
    parts = [*_held(sizes, measured, own_bytes), *_written(sizes)]
    parts += _computed(sizes, None if elsewhere else measured, elsewhere=elsewhere)
    parts += _held_by_workers(sizes, measured, workers) if workers else []
    return tuple(part for part in parts if part.host_bytes or part.device_bytes)


def _held(sizes: Sizes, measured: ProbeResult | None, own_bytes: int) -> Iterator[Part]:
    """Yield the memory that the run holds throughout, and the memory of its start and of a resume."""
    on_gpu, capacity = sizes.device == "cuda", sizes.config.replay.capacity * sizes.row_bytes
    process = _PROCESS + on_gpu * _CUDA_HOST if measured is None else measured.process
    yield Part("process", process, 0)
    yield Part("training", max(TRAINING_BYTES, own_bytes - process), 0)
    yield Part("CUDA", 0, on_gpu * CUDA_CONTEXT_BYTES, device_holder="driver")
    yield Part("data", *_data(sizes, measured))
    yield Part("population", *sizes.tensors(sizes.population_bytes))
    if on_gpu:
        # A GPU allocates all slots of the replay; on the host empty ones take no memory.
        yield Part("replay", torch.float32.itemsize * sizes.rows_stored, capacity)
    else:
        yield Part("replay", sizes.replay_bytes, 0, _GENERATION)
    if measured is not None:
        yield Part("starting", *measured.phases["start"].excess_over(measured.started), ("start",))
    # A resume holds the checkpoint's replay and population as well as those that they replace.
    replaced = on_gpu * (capacity + sizes.population_bytes)
    yield Part("loaded", sizes.replay_bytes + sizes.population_bytes, replaced, ("resume",))


def _data(sizes: Sizes, measured: ProbeResult | None) -> Memory:
    """Return the memory of data and task: measured after `start`, less population and a GPU's replay; else counted."""
    on_gpu = sizes.device == "cuda"
    if measured is None:
        return Memory(sizes.data_bytes, on_gpu * sizes.data_bytes)
    replay = on_gpu * sizes.config.replay.capacity * sizes.row_bytes
    return measured.started.excess_over(sizes.tensors(sizes.population_bytes + replay))


def _computed(sizes: Sizes, measured: ProbeResult | None, *, elsewhere: bool) -> Iterator[Part]:
    """Yield the memory that phases of a generation add in the run's own process; `elsewhere`: workers compute them."""
    config, population = sizes.config, sizes.population_bytes
    recorded = sizes.rows_per_generation * sizes.row_bytes
    # All transitions of a generation are concatenated when all agents have played.
    evaluation, breeding, moved = sizes.tensors(2 * recorded), sizes.tensors(population), 0
    if elsewhere:
        # The serialized replay, or its largest column while it moves to memory that local workers share.
        sent = config.scheduler is not None or not shares_memory(sizes.device)
        moved = population + (sizes.replay_bytes if sent else sizes.rows_stored * sizes.column_bytes)
    learning = sizes.tensors(population + moved if sizes.learning_agents else 0)
    if measured is not None:
        learning, breeding, played = (measured.phases[phase] for phase in ("train", "evolve", "evaluate"))
        # The last group plays while the transitions of the others are held.
        others = recorded * (config.population.size - measured.playing) // config.population.size
        evaluation = Memory(*map(max, played.plus(sizes.tensors(others)), evaluation))
        if config.has_holdout:
            episodes = config.evaluation.slices + config.evaluation.fixed_episodes
            held = played.times(config.evaluation.holdout_episodes / episodes)
            # The initial population plays too.
            weights = sizes.tensors(sizes.champion_bytes * config.population.size)
            yield Part("holdout", *held.plus(weights), ("holdout",))
    yield Part("evaluation", *evaluation, ("evaluate",))
    yield Part("learning", *learning, ("train",))
    yield Part("breeding", *breeding, ("evolve",))


def _held_by_workers(sizes: Sizes, measured: ProbeResult | None, count: int) -> Iterator[Part]:
    """Yield the host memory of all local workers, and the device memory of those on one GPU."""
    on_gpu, share = sizes.device == "cuda", -(-sizes.config.population.size // count)
    sharing = -(-count // max(len(visible_gpus()), 1)) if on_gpu else count
    data, played, learned = sizes.tensors(sizes.data_bytes), Memory(), Memory()
    if measured is not None:
        data = Memory(device=_data(sizes, measured).device) if on_gpu else _data(sizes, measured)
        played = measured.phases["evaluate"].times(min(share / measured.playing, 1.0))
        gradients = measured.phases["train"].excess_over(sizes.tensors(sizes.population_bytes))
        learned = gradients.times(min(share / max(measured.learning, 1), 1.0))
    rows: tuple[tuple[str, Memory, tuple[Phase, ...]], ...] = (
        ("processes", Memory(_WORKER + on_gpu * _CUDA_HOST, on_gpu * CUDA_CONTEXT_BYTES), PHASES),
        ("data", data, PHASES),
        ("replays", sizes.tensors(0 if shares_memory(sizes.device) else sizes.replay_bytes), _GENERATION),
        # One copy as received, one as computed.
        ("agents", sizes.tensors(2 * share * sizes.agent_bytes), _GENERATION),
        ("evaluation", played, ("evaluate",)),
        ("learning", learned, ("train",)),
    )
    for name, each, phases in rows:
        yield Part(f"workers' {name}", count * each.host, sharing * each.device, phases, "workers")


def _written(sizes: Sizes) -> Iterator[Part]:
    """Yield the memory of checkpoints, plots, trackers and uploads."""
    config = sizes.config
    yield Part("checkpoint staging", _STAGING, 0, ("checkpoint",))
    yield Part("plots", PLOTS_BYTES, 0, _GENERATION)
    # The largest tensor is copied from the device to the host for hashing or writing.
    largest = max(sizes.champion_bytes * config.population.size, sizes.rows_stored * sizes.column_bytes)
    yield Part("staging from the device", (sizes.device == "cuda") * 2 * largest, 0, ("evolve", "checkpoint"))
    for name in dict.fromkeys(config.reporting.trackers):
        yield Part(f"tracker {name}", tracker_class(name).memory_bytes, 0)
    yield Part("upload queue", is_remote(config.checkpoint.store) * _UPLOADS, 0, _GENERATION)


def local_worker_count(config: Config, device: Device) -> int:
    """Return the number of local worker processes of a run whose tensors live on `device`."""
    if config.workers != "auto":
        return config.workers
    found = len(visible_gpus()) if device == "cuda" else usable_cores()
    return min(found, config.population.size) if found > 1 else 0
