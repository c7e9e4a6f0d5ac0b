"""What a checkpoint holds, and what can be wrong with one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue

STEM = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""What a file's stem may be."""


@dataclass(frozen=True)
class Snapshot:
    """The whole state at the end of a generation, as named tensors and JSON documents.

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

    def __post_init__(self) -> None:
        if self.generation < 0 or self.champion_generation < 0:
            raise ValueError(f"generation {self.generation} or its champion's {self.champion_generation} is negative")
        for stem in (*self.tensors, *self.documents):
            if not STEM.fullmatch(stem):
                raise ValueError(f"'{stem}' cannot be the stem of a file in a checkpoint")
        if "manifest" in self.documents:
            raise ValueError("the document 'manifest' is written by the checkpoint itself")
        for stem, tensors in self.tensors.items():
            if "__metadata__" in tensors:
                raise ValueError(f"a tensor of '{stem}' is named '__metadata__', which safetensors keeps for itself")


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file of a generation."""

    generation: int
    file: str
    what: str
    """The rest of a sentence that starts with the file's name."""

    def __str__(self) -> str:
        return f"generation {self.generation}: {self.file} {self.what}"
