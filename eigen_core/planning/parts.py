"""What a run keeps in memory: each part with its size, why it has it, and in which phases it counts."""

from dataclasses import dataclass
from typing import Literal

import torch

from eigen_core.networks import ACTION_VALUES
from eigen_core.planning import activations
from eigen_core.planning.scale import DOUBLE, SINGLE, Scale
from eigen_core.store import is_remote

Phase = Literal["start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout"]
Device = Literal["cpu", "cuda"]

PHASES: tuple[Phase, ...] = ("start", "resume", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")
_GENERATION: tuple[Phase, ...] = ("evaluate", "train", "evolve", "checkpoint", "plot", "holdout")

_MB = 1_000_000

# Measured on Linux with glibc, torch 2.13 (CPU) and Prefect 3.8.8; `benchmarks/memory_plan.py` compares.
_PROCESS = 485 * _MB
_SERVER = 235 * _MB
_PLOTS = 45 * _MB
_STAGING = 16 * _MB
_UPLOADS = 24 * _MB
_UNUSED_CUDA = 295 * _MB
_KEPT_LIMIT = 150 * _MB
# Not measured: what others report of torch with CUDA 12.
_CUDA_HOST = 1_500 * _MB
_CUDA_CONTEXT = 600 * _MB
_CUDA_UNUSED_SHARE = 0.1


@dataclass(frozen=True)
class Part:
    """Something that takes memory.

    Attributes:
        name: what it is.
        host_bytes, device_bytes: what it takes on the host and on a GPU (bytes).
        how: a sentence that says how that is computed.
        phases: when it is there.
        server: it belongs to Prefect's embedded server, a child process.
    """

    name: str
    host_bytes: int
    device_bytes: int
    how: str
    phases: tuple[Phase, ...] = PHASES
    server: bool = False


def parts_of(scale: Scale, device: Device, *, server: bool) -> tuple[Part, ...]:
    """Return all parts of a run.

    Args:
        scale: the run.
        device: where its tensors live.
        server: Prefect's embedded server runs beside it.
    """
    tensors = _Tensors(device)
    parts = [
        *_processes(device, server=server),
        *_market(scale, tensors),
        *_agents(scale, tensors),
        *_working(scale, tensors),
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


def _processes(device: Device, *, server: bool) -> list[Part]:
    parts = [
        Part(
            "process",
            _PROCESS,
            0,
            "Python with torch, Prefect, pandas, matplotlib and a flow under way: measured at the end of generations, "
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
        parts.append(Part("CUDA", _CUDA_HOST, _CUDA_CONTEXT, how))
    return parts


def _market(scale: Scale, tensors: _Tensors) -> list[Part]:
    panel = scale.panel
    cells, traded = panel.days * panel.columns, panel.days * panel.assets
    features = SINGLE * cells * panel.features
    # Lows are never read, so that their pages are never touched where they are mapped.
    prices = (3 if panel.mapped else 4) * DOUBLE * traded
    bank = SINGLE * cells * scale.filters
    shape = f"[{panel.days:,}, {panel.columns:,}, {panel.features}]"
    mapped = (
        "; mapped from the cache's files, which the system can drop, but resident all the same" if panel.mapped else ""
    )
    parts = [
        Part(
            "panel",
            features + cells + prices,
            0,
            f"Features {shape} of 4 bytes, validity of 1, prices of 8{mapped}.",
        ),
        tensors.part(
            "prices",
            (4 * DOUBLE + 2) * traded + cells,
            "Open, high, close and last known close of the tradable columns, 8 bytes each, where they can be bought "
            "and where there are none.",
        ),
    ]
    if scale.config.network.encoder == "tcn":
        parts.append(tensors.part("features", features, f"The panel's features {shape} as the encoder reads them."))
        return parts
    scales = scale.config.network.scales
    wide = f"[{panel.days:,}, {panel.columns:,}, {panel.features} x {len(scales)}]"
    parts.append(tensors.part("filter bank", bank, f"Moving means over the panel, {wide} of 4 bytes."))
    # The means of the former length, the sum so far, its last part, the block of twice the days and what it is made of.
    summing = (6 if max(scales) > 1 else 2) * features
    # Twice in 8 bytes: as they are, and squared.
    spreading = features + int(4 * features * panel.train_days(scale.config) / panel.days)
    building = features + max(summing, spreading)
    how = "Features and partial sums while the filter bank is computed, or the squares that scale it in 8 bytes."
    parts.append(tensors.part("building the filter bank", building, how, ("start",)))
    return parts


def _agents(scale: Scale, tensors: _Tensors) -> list[Part]:
    size = scale.config.population.size
    return [
        tensors.part(
            "population",
            scale.population_bytes,
            f"Weights, targets and two moments of {size} agents with {scale.parameters:,} values of 4 bytes each.",
        ),
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
    counted = "The most blocks that live at once by the code of this phase"
    groups = f"{scale.group} of {config.population.size} agents at a time"
    noise = SINGLE * ACTION_VALUES * scale.panel.assets * scale.group * config.evaluation.slices * scale.episode_days
    return [
        tensors.part(
            "evaluation",
            activations.evaluate(scale),
            f"{counted}: {groups}, {max(config.evaluation.slices, config.evaluation.validation_slices)} episodes of "
            f"{scale.episode_days} days each, {scale.panel.columns:,} columns; with the transitions recorded.",
            ("evaluate",),
            host_bytes=0 if tensors.device == "cpu" else 3 * noise,
        ),
        tensors.part(
            "second population",
            scale.population_bytes if scale.learns else 0,
            "Learning works on a copy, so that a failure can be taken back.",
            ("train",),
        ),
        tensors.part(
            "learning",
            activations.train(scale),
            f"{counted}: {groups}, batches of {config.learner.batch_size}, "
            f"{config.learner.accumulation_steps} an optimizer step, activations, gradients and Adam's temporaries"
            f"{_encoded(scale)}.",
            ("train",),
        ),
        tensors.part(
            "breeding", activations.evolve(scale), "The population that is bred, and what its elites keep.", ("evolve",)
        ),
        tensors.part(
            "holdout",
            activations.hold_out(scale),
            f"{counted}: the agents that the run began with, {groups}, {config.evaluation.validation_slices} episodes "
            "each.",
            ("holdout",),
        ),
    ]


def _encoded(scale: Scale) -> str:
    network = scale.config.network
    if network.encoder == "filter_bank":
        return ""
    columns = f"{network.column_chunk:,}" if network.column_chunk else f"all {scale.panel.columns:,}"
    return f"; blocks of {scale.block_days:,} days and the window before them, {columns} columns at a time"


def _leaving(scale: Scale, device: Device) -> list[Part]:
    """What checkpoints, uploads and plots take."""
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
            "Figures and pages, given back at the next generation's end: measured.",
            ("plot", "holdout"),
        ),
    ]
    if device == "cuda":
        actions = SINGLE * ACTION_VALUES * scale.panel.assets * scale.rows_stored
        how = "The largest tensor that is brought to the host to be hashed or written."
        parts.append(
            Part("staging from the device", 2 * max(scale.matrix_bytes, actions), 0, how, ("evolve", "checkpoint"))
        )
    if is_remote(config.checkpoint.store):
        how = "Blocks of 8 MB on their way; generations that wait lie on disk, not in memory."
        parts.append(Part("upload queue", _UPLOADS, 0, how, _GENERATION))
    return parts


def _kept_by_allocator(scale: Scale) -> Part:
    return Part(
        "kept by the allocator",
        min(activations.evaluate(scale), _KEPT_LIMIT),
        0,
        "Freed blocks of less than 8 MiB, which the C library keeps until the generation's end: as much again as the "
        f"evaluate phase holds, at most {_KEPT_LIMIT // _MB} MB; measured.",
        ("evaluate", "train", "evolve", "holdout"),
    )


def _kept_on_device(parts: list[Part]) -> Part:
    most = max(sum(part.device_bytes for part in parts if phase in part.phases) for phase in PHASES)
    how = "Blocks that torch keeps on the device without using them: a tenth of all others, assumed, not measured."
    return Part("kept by the allocator", 0, int(_CUDA_UNUSED_SHARE * most), how)
