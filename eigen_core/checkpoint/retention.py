"""Which generations stay, and what nobody refers to any more."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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


def missing_generations(present: Collection[int], champion_generation: int, rules: Collection[KeepRule]) -> list[int]:
    """Return the generations that all rules would have kept and that are not there, rising.

    The first generation of a run is 1. Whether there was one newer than all that are present cannot be known.

    Args:
        present: generations that have a manifest, damaged ones too.
        champion_generation: the generation in which the newest one's champion was found.
        rules: all that a run has been trained under; at least one.
    """
    newest = max(present, default=0)
    last = min(rule.keep_last for rule in rules)
    expected = set(range(max(1, newest - last + 1), newest))
    if champion_generation > 0:
        expected.add(champion_generation)
    if every := math.lcm(*(rule.keep_every for rule in rules)):
        expected |= set(range(every, newest, every))
    return sorted(expected - set(present))
