"""Which generations stay, and which files are no longer referred to."""

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

from eigen_core.checkpoint.damage import Damage
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.names import MANIFESTS, generation_of

_MOST_MISSING = 1_000
"""Missing generations that are named one by one."""


class KeepRule(NamedTuple):
    """What stays of a run, beside its champion's generation."""

    keep_last: int
    """So many of the newest generations."""
    keep_every: int
    """Every so many generations one; 0: none."""


@dataclass(frozen=True)
class CleanReport:
    """What was removed, or would be.

    Attributes:
        generations: numbers of the generations that are gone, rising.
        manifests: names of the manifests that were removed, superseded ones of kept generations included.
        blobs: names of the blobs that were removed.
        bytes_freed: their size (bytes).
    """

    generations: tuple[int, ...]
    manifests: tuple[str, ...]
    blobs: tuple[str, ...]
    bytes_freed: int


class ManifestSummary(NamedTuple):
    """What cleaning needs of a manifest; one is kept in memory for each generation that stays.

    The manifest itself would take ten times as much, and a long run keeps hundreds of generations.
    """

    name: str
    generation: int
    champion_generation: int
    age: tuple[int, str, str]
    blobs: dict[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> "ManifestSummary":
        """The summary of a manifest."""
        return cls(manifest.name, manifest.generation, manifest.champion_generation, age_of(manifest), manifest.blobs)


def kept_generations(
    stored: Collection[int], whole: Sequence[int], keep_every: int, champion_generation: int
) -> set[int]:
    """Return which of the stored generations stay.

    Args:
        stored: all generations in the run.
        whole: the newest ones that are not damaged, as many as are to be kept; the others are counted from there.
        keep_every: every so many generations one stays for good; 0: none.
        champion_generation: the generation in which the champion was found; it stays.

    A damaged generation newer than all whole ones stays too, until it is written again: it shows what happened.
    Without any whole generation all stay.
    """
    newest = max(whole, default=-1)
    return {
        generation
        for generation in stored
        if generation > newest
        or generation in whole
        or generation == champion_generation
        or (keep_every > 0 and generation % keep_every == 0)
    }


def missing_generations(
    present: Collection[int], champion_generation: int, rules: Collection[KeepRule]
) -> Iterator[int]:
    """Yield the generations that all rules would have kept and that are not there, rising.

    The first generation of a run is 1. Whether there was one newer than all that are present cannot be known. One
    manifest that names a huge generation makes them many: take no more than are needed.

    Args:
        present: generations that have a manifest, damaged ones too.
        champion_generation: the generation in which the newest one's champion was found.
        rules: all that a run has been trained under; at least one.
    """
    newest = max(present, default=0)
    last = min(rule.keep_last for rule in rules)
    every = math.lcm(*(rule.keep_every for rule in rules))
    expected = heapq.merge(
        range(max(1, newest - last + 1), newest),
        range(every, newest, every) if every else (),
        [champion_generation] if champion_generation > 0 else [],
    )
    return (generation for generation, _ in groupby(expected) if generation not in present)


def missing_damages(present: Collection[int], champion_generation: int, rules: Collection[KeepRule]) -> list[Damage]:
    """Return `missing_generations` as damages: the first thousand, and one for all that follow."""
    missing = list(islice(missing_generations(present, champion_generation, rules), _MOST_MISSING + 1))
    what = ["is missing, though retention keeps it"] * min(len(missing), _MOST_MISSING)
    if len(missing) > _MOST_MISSING:
        what.append("is missing, as more after it are, though retention keeps them")
    return [
        Damage(generation, "manifest", lost, f"{MANIFESTS}{generation:06d}-*.json")
        for generation, lost in zip(missing, what, strict=True)
    ]


def age_of(manifest: Manifest) -> tuple[int, str, str]:
    """Return what tells the later of two manifests of one generation: epoch, then time, then name."""
    return manifest.epoch, manifest.created, manifest.name


def kept_manifests(
    read: dict[str, ManifestSummary | None],
    sizes: dict[str, int],
    keep_last: int,
    keep_every: int,
    champion_generation: int | None,
    protected: Collection[int],
) -> set[str]:
    """Return the names of the manifests that stay.

    Args:
        read: name -> what the manifest says, None where it is damaged.
        sizes: blobs that are there, with their sizes (bytes).
        keep_last, keep_every, champion_generation, protected: see `RunContents.clean`.
    """
    best: dict[int, ManifestSummary] = {}
    for found in sorted((found for found in read.values() if found is not None), key=lambda found: found.age):
        if all(sizes.get(blob) == size for blob, size in found.blobs.items()):
            best[found.generation] = found
    whole = sorted(best, reverse=True)
    if champion_generation is None:
        champion_generation = best[whole[0]].champion_generation if whole else 0
    stored = {generation for name in read if (generation := generation_of(name)) is not None}
    kept = kept_generations(stored, whole[:keep_last], keep_every, champion_generation) | set(protected)
    return {
        name
        for name in read
        if (generation := generation_of(name)) in kept
        and (generation in protected or generation not in best or best[generation].name == name)
    }


def unneeded_blobs(
    blobs: Iterable[str], read: Mapping[str, ManifestSummary | None], kept: Collection[str]
) -> dict[str, bool]:
    """Return the blobs that no kept manifest refers to, and whether a manifest that goes does.

    Args:
        blobs: all that are stored.
        read: name -> what the manifest says, None where it is damaged.
        kept: the manifests that stay.
    """
    known = [found for found in read.values() if found is not None]
    named = {blob for found in known for blob in found.blobs}
    needed = {blob for found in known if found.name in kept for blob in found.blobs}
    return {blob: blob in named for blob in blobs if blob not in needed}
