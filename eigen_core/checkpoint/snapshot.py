"""Snapshots: the whole state at the end of a generation, and the ring of the replay buffer."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue

from eigen_core.machine.arithmetic import Arithmetic

STEM = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Allowed stems of files and names of columns."""


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
    """The replay buffer, of which only new rows are written."""
    computed_by: Arithmetic | None = None
    """Processor, libraries and settings that decide bits; None: they are not known."""

    def __post_init__(self) -> None:
        if self.generation < 0 or self.champion_generation < 0:
            raise ValueError(f"generation {self.generation} or its champion's {self.champion_generation} is negative")
        for stem in (*self.tensors, *self.documents):
            if not STEM.fullmatch(stem):
                raise ValueError(f"'{stem}' cannot be the stem of a file in a checkpoint")
        for stem, tensors in self.tensors.items():
            if "__metadata__" in tensors:
                raise ValueError(f"a tensor of '{stem}' is named '__metadata__', which safetensors keeps for itself")
