"""How fast half a gigabyte is saved as a generation, and in how much memory, beside a file and the replaced way."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.measure import take_turns
from benchmarks.replaced_way import save_pickled
from benchmarks.resident import extra_resident_mb, in_own_process
from benchmarks.results import Section
from eigen_core.checkpoint import RunDirectory, Snapshot
from eigen_core.randomness import keyed_generator

_AGENTS, _PARAMETERS = 16, 2_000_000
_NAMES = ("weights", "targets", "first_moments", "second_moments")
_PICKLED_PARAMETERS = _PARAMETERS // 16
_PIECE_BYTES = 8 << 20
_ROUNDS, _PICKLED_ROUNDS = 9, 2


def run() -> Section:
    """Save the tensors of a large population by turns with a plain file of the same bytes."""
    tensors = _population(_PARAMETERS)
    megabytes = _bytes_of(tensors) / 1e6
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as name:
        folder = Path(name)
        save, plain = _save(tensors, folder), lambda: _write_plainly(tensors, folder / "plain")
        times = take_turns({"plain": plain, "save": save}, _ROUNDS)
        few = _population(_PICKLED_PARAMETERS)
        pickled = take_turns({"": lambda: save_pickled(few, folder / "pickled")}, _PICKLED_ROUNDS, warm_ups=0)[""]
        stored = (folder / "pickled").stat().st_size
        extra = in_own_process(_extra_mb, folder)
    few_megabytes = _bytes_of(few) / 1e6
    share = times["plain"].over(times["save"])
    best = times["plain"].least / times["save"].least
    rows = [
        ["plain file, fsynced", *_rates(megabytes, times["plain"].median, times["plain"].least), "", ""],
        [
            "checkpoint",
            *_rates(megabytes, times["save"].median, times["save"].least),
            f"{100 * share:.0f} % ({100 * best:.0f} %)",
            f"{extra:.0f}",
        ],
        [
            f"pickle and gzip 6, of {few_megabytes:.0f} MB",
            *_rates(few_megabytes, pickled.median, pickled.least),
            f"{100 * (few_megabytes / pickled.median) / (megabytes / times['plain'].median):.0f} %",
            "",
        ],
    ]
    return Section(
        title="A generation of half a gigabyte",
        method=f"{_AGENTS} agents of {_PARAMETERS:,} parameters with targets and both moments ({megabytes:.0f} MB), "
        f"saved as a generation (hashed, written, fsynced), {_ROUNDS} times by turns with a plain file of the same "
        "bytes that is written and fsynced; the share is the middle of those of each round, and in brackets that of "
        "the two best. Pickle and gzip 6, as the replaced system did without fsync, take so long that they get a "
        f"sixteenth of it, and save {100 * (1 - stored / 1e6 / few_megabytes):.0f} % of it. Extra memory: peak of the "
        "resident memory above the tensors', in a process of its own.",
        columns=("", "MB/s: middle (best)", "s: middle (best)", "share of the plain file's MB/s", "extra MB"),
        rows=rows,
        remarks=("The goal is at least 60 % of the plain file's MB/s and less than 64 MB of extra memory.",),
    )


def _rates(megabytes: float, middle: float, least: float) -> list[str]:
    return [f"{megabytes / middle:,.0f} ({megabytes / least:,.0f})", f"{middle:.2f} ({least:.2f})"]


def _save(tensors: Mapping[str, torch.Tensor], folder: Path) -> Callable[[], None]:
    directory = RunDirectory.create(folder, "bulk", {})
    generation = 0

    def save() -> None:
        nonlocal generation
        generation += 1
        directory.save(Snapshot(generation, {"population": tensors}, {}, 0))

    return save


def _write_plainly(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the bytes to a new file that takes the old one's place, so that both sides free as much on the disk."""
    temporary = path.with_suffix(".new")
    with open(temporary, "wb", buffering=0) as file:
        for tensor in tensors.values():
            left = tensor.reshape(-1).view(torch.uint8).numpy().data
            while left:
                left = left[file.write(left[:_PIECE_BYTES]) :]
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _extra_mb(folder: Path) -> float:
    save = _save(_population(_PARAMETERS), folder / "in a process of its own")
    return extra_resident_mb(save)


def _population(parameters: int) -> dict[str, torch.Tensor]:
    generator = keyed_generator(1, 0, "benchmarks", "bulk", "values")
    shape = (_AGENTS, parameters)
    tensors = {name: torch.tensor(generator.standard_normal(shape, dtype="float32")) for name in _NAMES}
    tensors["second_moments"].square_()
    return tensors


def _bytes_of(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
