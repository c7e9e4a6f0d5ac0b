"""What a checkpoint holds, and what can be wrong with one."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue

from eigen_core.arithmetic import Arithmetic
from eigen_core.errors import InputError

STEM = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""What a file's stem, or a column's name, may be."""


@dataclass(frozen=True)
class Ring:
    """The replay buffer: the newest rows of a table to which rows are only ever appended.

    The row that was appended as number n (from 0) is in slot n % capacity; slots that no row has reached hold anything
    before saving, zeros after loading.

    Raises:
        ValueError: columns, size and number of rows do not fit together.
    """

    columns: Mapping[str, torch.Tensor]
    """Name -> `[capacity, ...]`; may be views and on any device, come back on the CPU, contiguous, in own memory."""
    size: int
    """Rows that are stored."""
    written: int
    """Rows ever appended."""

    def __post_init__(self) -> None:
        lengths = {column.shape[0] if column.ndim else 0 for column in self.columns.values()}
        if len(lengths) != 1 or min(lengths) < 1:
            raise ValueError(f"the columns of a ring must be equally long and not empty, not {sorted(lengths)}")
        if self.size != min(self.written, self.capacity) or self.written < 0:
            raise ValueError(f"a ring of {self.capacity} slots and {self.written} rows cannot store {self.size}")
        for name in self.columns:
            if not STEM.fullmatch(name):
                raise ValueError(f"'{name}' cannot be the name of a column of a ring")

    @property
    def capacity(self) -> int:
        """Rows that it can store."""
        return int(next(iter(self.columns.values())).shape[0])


def slot_ranges(capacity: int, first: int, stop: int, most: int | None = None) -> Iterator[tuple[int, slice]]:
    """Yield where the rows `first` to `stop` of a ring lie: number of a first row, slots; at most `most` at a time."""
    while first < stop:
        slot = first % capacity
        count = min(stop - first, capacity - slot, stop if most is None else most)
        yield first, slice(slot, slot + count)
        first += count


@dataclass(frozen=True)
class Snapshot:
    """The whole state at the end of a generation, as named tensors, JSON documents and a ring.

    Tensors may be views, may share memory and may be on any device; they come back on the CPU, each with memory of its
    own. Documents are what JSON can hold: keys are strings, tuples come back as lists, NaN and infinity are refused.
    A document that grows with the run is better given as its JSON text, in bytes, which is stored as it is; it comes
    back parsed.

    Raises:
        ValueError: a stem, a tensor's name or a generation's number cannot be stored.
    """

    generation: int
    """Number of the generation."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """File stem -> named tensors; one safetensors file each."""
    documents: Mapping[str, JsonValue | bytes]
    """File stem -> JSON document."""
    champion_generation: int
    """Generation in which the champion was found; retention keeps it. 0: there is no champion."""
    ring: Ring | None = None
    computed_by: Arithmetic | None = None
    """What computed the generation, as far as it decides bits; None: that is not known."""
    """The replay buffer, which is stored by what was appended."""

    def __post_init__(self) -> None:
        if self.generation < 0 or self.champion_generation < 0:
            raise ValueError(f"generation {self.generation} or its champion's {self.champion_generation} is negative")
        for stem in (*self.tensors, *self.documents):
            if not STEM.fullmatch(stem):
                raise ValueError(f"'{stem}' cannot be the stem of a file in a checkpoint")
        for stem, tensors in self.tensors.items():
            if "__metadata__" in tensors:
                raise ValueError(f"a tensor of '{stem}' is named '__metadata__', which safetensors keeps for itself")


@dataclass(frozen=True)
class Damage:
    """What is wrong with one part of a run.

    Attributes:
        generation: the generation that needs it; None: all of them.
        file: what it is: "population.safetensors", "replay shard 11600", "manifest", "config.json".
        what: the rest of a sentence that starts with the file.
        path: where it is stored, relative to the run's folder.
    """

    generation: int | None
    file: str
    what: str
    path: str

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path != self.file else ""
        generation = "" if self.generation is None else f"generation {self.generation}: "
        return f"{generation}{self.file} {self.what}{where}"


class UnfitSnapshotError(InputError):
    """A snapshot is whole, but no run with this configuration can have left it.

    Attributes:
        file: which part of it: "state.json", "replay".
        what: the rest of a sentence that starts with the part.
    """

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file} {what}.")
        self.file = file
        self.what = what


class DamagedGenerationError(InputError):
    """A generation is not what its manifest says.

    Attributes:
        damages: all that was found.
    """

    def __init__(self, message: str, damages: list[Damage]) -> None:
        super().__init__(message)
        self.damages = damages


def in_words(damages: list[Damage]) -> str:
    """Return the first damages as part of a sentence."""
    shown = "; ".join(str(damage) for damage in damages[:3])
    return shown + (f"; and {len(damages) - 3} more" if len(damages) > 3 else "")
