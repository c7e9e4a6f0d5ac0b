"""Which generations stay, and what nobody refers to any more."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


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
