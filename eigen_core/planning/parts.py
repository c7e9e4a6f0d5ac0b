"""What a run keeps in memory: each part with its size, why it has it, and in which phases it counts."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from eigen_core.memory import shares_memory
from eigen_core.needs import SINGLE
from eigen_core.planning import phases
from eigen_core.planning.scale import Scale
from eigen_core.planning.workers import has_workers, local_worker_count, most_on_one_gpu, worker_needs
from eigen_core.reporting.trackers import tracker_bytes
from eigen_core.store import is_remote

Phase = Literal["start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout"]
Device = Literal["cpu", "cuda"]
Holder = Literal["training", "driver", "workers"]

PHASES: tuple[Phase, ...] = ("start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")
_GENERATION: tuple[Phase, ...] = ("evaluate", "train", "evolve", "checkpoint", "plot", "holdout")

_MB = 1_000_000

# Measured on Linux with glibc, torch 2.13 (CPU) and Prefect 3.8.8; `benchmarks/memory_plan.py` compares.
_PROCESS = 455 * _MB
_SERVER = 235 * _MB
_PLOTS = 130 * _MB
_STAGING = 16 * _MB
_UPLOADS = 24 * _MB
_UNUSED_CUDA = 295 * _MB
_KEPT_LIMIT = 150 * _MB
# Not measured: what others report of torch with CUDA 12.
_CUDA_HOST = 1_500 * _MB
_CUDA_CONTEXT = 600 * _MB
# `CUBLAS_WORKSPACE_CONFIG=:4096:8` takes 32 MiB for the thread of the phases, and as much for that of autograd.
_CUDA_GRAPHS = 80 * _MB
_CUDA_UNUSED_SHARE = 0.1
# What is drawn and sent to a GPU takes on the host: as drawn, and in pinned memory, of which torch takes powers of two.
_SENT = 3


@dataclass(frozen=True)
class Part:
    """Something that takes memory.

    Attributes:
        name: what it is.
        host_bytes, device_bytes: what it takes on the host and on a GPU (bytes).
        how: a sentence that says how that is computed.
        phases: when it is there.
        server: it belongs to Prefect's embedded server, a child process.
        device_holder: what holds it on a GPU: torch in the process of the training, CUDA's driver for that process, or
            the workers.
    """

    name: str
    host_bytes: int
    device_bytes: int
    how: str
    phases: tuple[Phase, ...] = PHASES
    server: bool = False
    device_holder: Holder = "training"


def parts_of(scale: Scale, device: Device, *, server: bool) -> tuple[Part, ...]:
    """Return all parts of a run.

    Args:
        scale: the run.
        device: where its tensors live.
        server: Prefect's embedded server runs beside it.
    """
    tensors = _Tensors(device)
    parts = [
        *_processes(device, server=server, cuda_graphs=scale.config.cuda_graphs),
        *_of_task(scale, tensors),
        *_agents(scale, tensors),
        *_working(scale, tensors),
        *worker_parts(scale, device, local_worker_count(scale.config, device)),
        *_leaving(scale, device),
    ]
    if device == "cpu":
        parts.append(_kept_by_allocator(scale))
    else:
        parts.append(_kept_on_device(parts))
    return tuple(part for part in parts if part.host_bytes or part.device_bytes)


@dataclass(frozen=True)
class _Tensors:
    """Makes parts that consist of tensors, which live where the run computes."""

    device: Device

    def part(self, name: str, size: int, how: str, phases: tuple[Phase, ...] = PHASES, host_bytes: int = 0) -> Part:
        """A part of `size` bytes of tensors, and of `host_bytes` that are on the host in any case."""
        if self.device == "cpu":
            return Part(name, size + host_bytes, 0, how, phases)
        return Part(name, host_bytes, size, how, phases)


def _processes(device: Device, *, server: bool, cuda_graphs: bool) -> list[Part]:
    parts = [
        Part(
            "process",
            _PROCESS,
            0,
            "Python with torch, Prefect, pandas and a flow under way: measured at the end of generations, "
            "without the other parts.",
        )
    ]
    if server:
        how = "Prefect's embedded server, a process of its own: measured. None where PREFECT_API_URL is set."
        parts.append(Part("Prefect's server", _SERVER, 0, how, server=True))
    if device == "cpu" and torch.version.cuda is not None:
        how = "The libraries of a torch that is built for CUDA, though it computes on the CPU: measured."
        parts.append(Part("unused CUDA", _UNUSED_CUDA, 0, how))
    if device == "cuda":
        how = "CUDA's libraries on the host and its context on the device: assumed, not measured."
        parts.append(Part("CUDA", _CUDA_HOST, _CUDA_CONTEXT, how, device_holder="driver"))
    if device == "cuda" and cuda_graphs:
        how = "Workspaces of cuBLAS on the stream that captures, and inputs of graphs: assumed, not measured."
        parts.append(Part("CUDA graphs", 0, _CUDA_GRAPHS, how))
    return parts


def _of_task(scale: Scale, tensors: _Tensors) -> list[Part]:
    return [
        tensors.part(kept.name, kept.tensor_bytes, kept.how, ("start",) if kept.starting else PHASES, kept.host_bytes)
        for kept in scale.task.kept
    ]


def _agents(scale: Scale, tensors: _Tensors) -> list[Part]:
    size = scale.config.population.size
    return [
        tensors.part(
            "population",
            scale.population_bytes,
            f"{size} agents of {scale.learner.agent:,} bytes each: {scale.parameters:,} weights, and what the learner "
            "keeps beside them.",
        ),
        tensors.part("population method", scale.method.kept, "What it keeps from generation to generation."),
        tensors.part("champion", SINGLE * scale.parameters, "The best agent's weights."),
        _replay(scale, tensors.device),
        tensors.part(
            "drawing the population",
            3 * scale.matrix_bytes,
            "The first weights as drawn, in rows, and stacked.",
            ("start",),
        ),
        *_resuming(scale, tensors.device),
    ]


def _replay(scale: Scale, device: Device) -> Part:
    capacity, row = scale.config.replay.capacity, scale.row_bytes
    if device == "cpu":
        how = (
            f"{scale.rows_stored:,} transitions of {row:,} bytes: what {scale.config.generations:,} generations "
            f"append, at most its capacity of {capacity:,}; what was never written takes nothing."
        )
        return Part("replay", scale.rows_stored * row, 0, how, _GENERATION)
    how = f"Its capacity of {capacity:,} transitions of {row:,} bytes; on the host the day of each that is written."
    return Part("replay", SINGLE * scale.rows_stored, capacity * row, how)


def _resuming(scale: Scale, device: Device) -> list[Part]:
    """What a run that goes on from a checkpoint holds before its first generation."""
    population = scale.population_bytes
    loaded = scale.rows_stored * scale.row_bytes + population
    if device == "cpu":
        how = "Replay and population of the checkpoint, and the population that they replace."
        return [Part("what is loaded", loaded + population, 0, how, ("resume",))]
    return [
        Part("what is loaded", loaded, 0, "Replay and population of the checkpoint, before they move.", ("resume",)),
        Part(
            "what is replaced",
            0,
            scale.config.replay.capacity * scale.row_bytes + population,
            "The empty replay and the population as drawn, until those of the checkpoint take their place.",
            ("resume",),
        ),
    ]


def _working(scale: Scale, tensors: _Tensors) -> list[Part]:
    """What the phases compute with."""
    config = scale.config
    elsewhere = has_workers(config, tensors.device)
    sent = config.scheduler is not None or not shares_memory(tensors.device)
    counted = "The most blocks that live at once by the code of this phase"
    groups = f"{scale.playing_group} of {config.population.size} agents at a time"
    return [
        tensors.part(
            "evaluation",
            phases.evaluate_elsewhere(scale) if elsewhere else phases.evaluate(scale),
            "The transitions that workers have recorded, as they come, joined, and as they are stored."
            if elsewhere
            else f"{counted}: {groups}, {config.evaluation.slices + config.evaluation.fixed_episodes} episodes of "
            f"{scale.task.episode_steps} steps each; with the transitions recorded.",
            ("evaluate",),
            host_bytes=0 if tensors.device == "cpu" else _SENT * scale.noise_bytes,
        ),
        tensors.part(
            "second population",
            scale.population_bytes if scale.learns else 0,
            "Learning works on a copy, so that a failure can be taken back.",
            ("train",),
        ),
        tensors.part(
            "learning",
            phases.train_elsewhere(scale, sent=sent) if elsewhere else phases.train(scale),
            "What workers learn from, the agents as they come back, and the replay: as it is sent, or its largest "
            "column as it moves to where workers of this machine read it."
            if elsewhere
            else f"{counted}: {scale.learning_group} of {scale.learning_agents} agents that learn at a time, "
            f"{scale.learner.how}, activations, gradients and Adam's temporaries"
            f"{scale.task.learning}.",
            ("train",),
            host_bytes=0 if elsewhere or tensors.device == "cpu" else _SENT * scale.learner.drawn,
        ),
        tensors.part(
            "breeding", phases.evolve(scale), "The population that is bred, and what goes into it.", ("evolve",)
        ),
        tensors.part(
            "holdout",
            phases.hold_out(scale),
            f"{counted}: the agents that the run began with, {groups}, {config.evaluation.holdout_episodes} episodes "
            "each.",
            ("holdout",),
        ),
    ]


def worker_parts(scale: Scale, device: Device, count: int, among: int | None = None) -> list[Part]:
    """Return what workers on one machine take, all together on its host, and on a GPU those that share it.

    Args:
        scale: the run.
        device: where their tensors live.
        count: how many they are.
        among: how many share the agents; None: they alone.
    """
    if not count:
        return []
    tensors, needs = _Tensors(device), worker_needs(scale, among or count, device)
    holding, each = count, f"each of {count}"
    if device == "cuda":
        holding = most_on_one_gpu(count)
        each = f"each of the {holding} that share a GPU, of {count} in all"
    processes = count * needs.process + (0 if device == "cpu" else count * _CUDA_HOST)
    kept = min(needs.evaluate, _KEPT_LIMIT) if device == "cpu" else _CUDA_CONTEXT

    def part(name: str, size: int, how: str, *phases: Phase, host_bytes: int = 0) -> Part:
        made = tensors.part(f"workers' {name}", holding * size, how, phases or PHASES, host_bytes)
        return replace(made, device_holder="workers")

    return [
        Part("workers", processes, 0, f"{count} processes of Python with torch and Dask: measured."),
        part("data", needs.kept, f"What is played on, once in {each}."),
        part(
            "replays",
            needs.replay,
            f"A copy of the replay in {each}, and with GPUs one on the host that all of them read.",
            *_GENERATION,
            host_bytes=0 if device == "cpu" else needs.replay,
        ),
        part(
            "agents",
            needs.agents,
            "Their share of the agents, as they were sent and as they are computed.",
            *_GENERATION,
        ),
        part("evaluation", needs.evaluate + kept, "As evaluation, of a share of the agents.", "evaluate"),
        part(
            "learning",
            needs.train + kept,
            "As learning, of a share of the agents.",
            "train",
            host_bytes=0 if tensors.device == "cpu" else count * _SENT * scale.learner.drawn,
        ),
    ]


def _leaving(scale: Scale, device: Device) -> list[Part]:
    """What checkpoints, uploads, plots and trackers take."""
    config = scale.config
    parts = [
        Part(
            "checkpoint staging",
            _STAGING,
            0,
            "Blocks of at most 8 MB that are compressed, hashed and written, two at a time; independent of the "
            "checkpoint's size.",
            ("checkpoint",),
        ),
        Part(
            "plots",
            _PLOTS,
            0,
            "The process that draws, beside the next generation or the last one: measured.",
            _GENERATION,
        ),
    ]
    if device == "cuda":
        how = "The largest tensor that is brought to the host to be hashed or written."
        largest = max(scale.matrix_bytes, scale.column_bytes)
        parts.append(Part("staging from the device", 2 * largest, 0, how, ("evolve", "checkpoint")))
    for name, size in tracker_bytes(config).items():
        parts.append(Part(f"tracker {name}", size, 0, "Its packages, and what it writes with: measured."))
    if is_remote(config.checkpoint.store):
        how = "Blocks of 8 MB on their way; generations that wait lie on disk, not in memory."
        parts.append(Part("upload queue", _UPLOADS, 0, how, _GENERATION))
    return parts


def _kept_by_allocator(scale: Scale) -> Part:
    return Part(
        "kept by the allocator",
        min(phases.evaluate(scale), _KEPT_LIMIT),
        0,
        "Freed blocks of less than 8 MiB, which the C library keeps until the generation's end: as much again as the "
        f"evaluate phase holds, at most {_KEPT_LIMIT // _MB} MB; measured.",
        ("evaluate", "train", "evolve", "holdout"),
    )


def _kept_on_device(parts: list[Part]) -> Part:
    most = max(sum(part.device_bytes for part in parts if phase in part.phases) for phase in PHASES)
    how = "Blocks that torch keeps on the device without using them: a tenth of all others, assumed, not measured."
    return Part("kept by the allocator", 0, int(_CUDA_UNUSED_SHARE * most), how)
