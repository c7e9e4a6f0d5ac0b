"""What a generation must consist of, so that a run can go on from it: names, types and shapes, no values."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from eigen_core.checkpoint.damage import Damage
from eigen_core.checkpoint.manifest import Manifest, RingEntry, TensorFacts
from eigen_core.checkpoint.ring_files import ring_columns
from eigen_core.checkpoint.snapshot import Ring
from eigen_core.checkpoint.tensor_files import tensor_facts

_HEADER_LIMIT = 1 << 20
"""Most bytes that a safetensors file may have beside its tensors."""


@dataclass(frozen=True)
class SnapshotForm:
    """The form of a run's snapshots. It is compared with a manifest, before anything that it names is read.

    Attributes:
        files: name of each file -> its tensors; None for JSON.
        capacity: slots of the ring.
        columns: one row of the ring.
        generation_rows: how many rows a generation can append to it.
    """

    files: Mapping[str, tuple[TensorFacts, ...] | None]
    capacity: int
    columns: tuple[TensorFacts, ...]
    generation_rows: range

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Mapping[str, torch.Tensor]],
        documents: Collection[str],
        ring: Ring,
        generation_rows: range,
    ) -> Self:
        """Return the form of snapshots with tensors, documents and a ring like these, whatever they hold."""
        held = {f"{stem}.safetensors": tensor_facts(stem, named) for stem, named in tensors.items()}
        texts = dict.fromkeys(f"{stem}.json" for stem in documents)
        return cls({**held, **texts}, ring.capacity, ring_columns(ring), generation_rows)

    def damages(self, manifest: Manifest) -> list[Damage]:
        """Return in what a manifest differs from this form."""
        found = [*self._file_damages(manifest), *self._ring_damages(manifest.ring, manifest.generation)]
        return [Damage(manifest.generation, part, what, manifest.name) for part, what in found]

    def _file_damages(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        there = {entry.name: entry for entry in manifest.files}
        for name in sorted(there.keys() | self.files.keys()):
            if name not in there:
                yield name, "is not in the manifest"
            elif name not in self.files:
                yield name, "is not known to this version of Eigen"
            elif (wanted := self.files[name]) is not None:
                entry = there[name]
                beside = entry.bytes - sum(tensor.nbytes for tensor in wanted)
                if what := _difference(entry.tensors or (), wanted):
                    yield name, what
                elif not 0 <= beside <= _HEADER_LIMIT:
                    yield name, f"has {entry.bytes:,} bytes, which do not fit its tensors"

    def _ring_damages(self, ring: RingEntry | None, generation: int) -> Iterator[tuple[str, str]]:
        if ring is None:
            yield "replay", "is not in the manifest"
        elif what := _difference(ring.columns, self.columns):
            yield "replay", what
        elif ring.capacity != self.capacity:
            yield "replay", f"has {ring.capacity:,} slots instead of {self.capacity:,}"
        else:
            fewest, most = generation * self.generation_rows[0], generation * self.generation_rows[-1]
            if not fewest <= ring.written <= most:
                wanted = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
                yield "replay", f"has had {ring.written:,} rows instead of {wanted}"


def _difference(found: Collection[TensorFacts], wanted: Collection[TensorFacts]) -> str | None:
    """Return the first difference between two sets of tensors, None if there is none."""
    there = {tensor.name: tensor for tensor in found}
    expected = {tensor.name: tensor for tensor in wanted}
    for name in sorted(there.keys() | expected.keys()):
        if there.get(name) != expected.get(name):
            return f"holds {name} as {_in_words(there.get(name))} instead of {_in_words(expected.get(name))}"
    return None if len(found) == len(there) else "names a tensor twice"


def _in_words(tensor: TensorFacts | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
