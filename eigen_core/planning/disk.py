"""What a run writes: a checkpoint, the whole run under its retention rule, and what goes to a store elsewhere."""

from dataclasses import dataclass

import torch

from eigen_core.checkpoint.retention import kept_generations
from eigen_core.needs import SINGLE
from eigen_core.planning.scale import Scale
from eigen_core.store import is_remote
from eigen_core.task.needs import row_bytes

# Shares of the bytes that zstd and gzip leave of the replay's columns: measured on runs of preset quickstart.
_FLOATS_LEFT = 0.74
_OTHERS_LEFT = 0.15

_RECORD_BYTES_AN_AGENT = 152
_RECORD_BYTES = 220
_FIXED_BYTES = 10_000
_NAME_BYTES = 10
_PLOT_PAGE_BYTES = 240_000


@dataclass(frozen=True)
class DiskPlan:
    """What a run writes (bytes).

    Attributes:
        checkpoint_bytes: what a generation's checkpoint writes, on average over the run.
        population_bytes: of it, the population's file.
        shard_bytes, shard_raw_bytes: of it, the new transitions; and what they are before compression.
        run_bytes: the run at its end, as the retention rule leaves it, where it is kept.
        most_bytes: the most while it trains: one generation more.
        local_bytes: what also lies on this machine if the store is elsewhere, with everything waiting that may; else 0.
        upload_generation_bytes, upload_bytes: what goes to a store elsewhere, per generation and in all; else 0.
        assumption: what was assumed.
    """

    checkpoint_bytes: int
    population_bytes: int
    shard_bytes: int
    shard_raw_bytes: int
    run_bytes: int
    most_bytes: int
    local_bytes: int
    upload_generation_bytes: int
    upload_bytes: int
    assumption: str


def disk_plan(scale: Scale) -> DiskPlan:
    """Return what a run writes, from its first generation to its last."""
    config = scale.config
    settings, last = config.checkpoint, config.generations
    checkpoints = [_files_bytes(scale, generation) + _shard_bytes(scale) for generation in range(1, last + 1)]
    mean = sum(checkpoints) // last
    local = upload = 0
    if is_remote(settings.store):
        waiting = min(settings.queue_generations + settings.keep_local, last)
        local = _kept_bytes(scale, set(range(last - waiting + 1, last + 1)))
        upload = sum(checkpoints) + _plot_pages(scale) * _PLOT_PAGE_BYTES
    kept = _kept(scale, settings.keep_last)
    return DiskPlan(
        checkpoint_bytes=mean,
        population_bytes=scale.population_bytes,
        shard_bytes=_shard_bytes(scale),
        shard_raw_bytes=scale.rows_per_generation * scale.row_bytes,
        run_bytes=_kept_bytes(scale, kept) + _PLOT_PAGE_BYTES,
        most_bytes=_kept_bytes(scale, _kept(scale, settings.keep_last + 1)) + _PLOT_PAGE_BYTES,
        local_bytes=local,
        upload_generation_bytes=mean if upload else 0,
        upload_bytes=upload,
        assumption=_assumption(scale),
    )


def _left(scale: Scale) -> float:
    """Share of a transition's bytes that compression leaves."""
    if scale.config.replay.compression == "none":
        return 1.0
    floats = row_bytes({name: held for name, held in scale.task.columns.items() if held.dtype == torch.float32})
    return (_FLOATS_LEFT * floats + _OTHERS_LEFT * (scale.row_bytes - floats)) / scale.row_bytes


def _assumption(scale: Scale) -> str:
    if scale.config.replay.compression == "none":
        return "The replay is stored as it is."
    left = f"{scale.config.replay.compression} leaves {_left(scale):.0%} of the replay's new transitions"
    shares = f"{_FLOATS_LEFT:.0%} of float32 values, {_OTHERS_LEFT:.0%} of the rest"
    return f"{left}: {shares}, as measured on preset quickstart."


def _shard_bytes(scale: Scale) -> int:
    return int(scale.rows_per_generation * scale.row_bytes * _left(scale))


def _files_bytes(scale: Scale, generation: int) -> int:
    """What a generation writes beside the replay: population, champion, records so far, manifest."""
    records = generation * (_RECORD_BYTES_AN_AGENT * scale.config.population.size + _RECORD_BYTES)
    return (
        scale.population_bytes
        + SINGLE * scale.parameters
        + records
        + _FIXED_BYTES
        + _NAME_BYTES * scale.task.names_listed
    )


def _kept(scale: Scale, newest: int) -> set[int]:
    """Generations that stay at the run's end; the champion is assumed to be an old one that nothing else keeps."""
    last = scale.config.generations
    every = scale.config.checkpoint.keep_every
    whole = range(last, max(last - newest, 0), -1)
    return kept_generations(range(1, last + 1), whole, every, 1)


def _kept_bytes(scale: Scale, kept: set[int]) -> int:
    """Bytes of some generations: the files of each, and each shard that any of them needs, once."""
    shards = set().union(*(_shards_of(scale, generation) for generation in kept))
    return sum(_files_bytes(scale, generation) for generation in kept) + len(shards) * _shard_bytes(scale)


def _shards_of(scale: Scale, generation: int) -> set[int]:
    """Generations whose new transitions are still in the replay after `generation`."""
    written = generation * scale.rows_per_generation
    oldest = max(written - scale.config.replay.capacity, 0)
    return set(range(oldest // scale.rows_per_generation + 1, generation + 1))


def _plot_pages(scale: Scale) -> int:
    every, last = scale.config.reporting.plot_every, scale.config.generations
    return (last // every if every else 0) + (0 if every and last % every == 0 else 1)
