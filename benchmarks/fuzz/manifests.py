"""The newest manifest, or what it names, is changed and given new checksums, so that every checksum is right.

Left out is what no reader can know: values of moments, targets and the champion's weights that might have been, and
what a history says of older generations beside what their records must agree in.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.small_run import GENERATIONS, copied, resumed
from eigen_core.checkpoint.integrity import blob_name, checksummed, manifest_name
from eigen_core.checkpoint.tensors import tensor_infos

_VALUES: list[Any] = [None, True, -1, 0, 1, 2.5, 99, 1e30, 10**9, 10**14, 10**20, -0.5, "", "x", "0" * 64, [], {}, [[]]]

Fields = dict[str, Any]
Document = Fields | list[Any]


class _Run:
    """A copy of the run whose newest generation is changed.

    Attributes:
        fields: the manifest's, without its checksum.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._manifest = max((path / "manifests").iterdir())
        self.fields: Fields = self._read(self._manifest)

    def _read(self, path: Path) -> Fields:
        return {name: value for name, value in json.loads(path.read_bytes()).items() if name != "checksum"}

    def older(self) -> Fields:
        return self._read(sorted((self._path / "manifests").iterdir())[-2])

    def entry(self, name: str) -> Fields:
        found: Fields = next(entry for entry in self.fields["files"] if entry["name"] == name)
        return found

    def content(self, name: str) -> bytes:
        return (self._path / blob_name(self.entry(name)["sha256"])).read_bytes()

    def put(self, entry: Fields, content: bytes) -> None:
        entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        blob = self._path / blob_name(entry["sha256"])
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)

    def seal(self) -> None:
        content = checksummed(self.fields)
        self._manifest.unlink()
        generation = self.fields.get("generation")
        number = generation if type(generation) is int and 0 <= generation < 10**18 else GENERATIONS
        (self._path / manifest_name(number, json.loads(content)["checksum"])).write_bytes(content)


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    """Change one thing, or two, of the newest generation, seal it, and go on with the run."""
    path = copied(folder)
    run = _Run(path)
    kind = list(_CHANGES)[int(generator.integers(len(_CHANGES)))]
    what = _CHANGES[kind](run, generator)
    run.seal()
    treatment, fault = resumed(folder)
    return Outcome(kind, treatment, fault and f"{what}: {fault}")


def _manifest(run: _Run, generator: np.random.Generator) -> str:
    return _change_somewhere(run.fields, generator)


def _configuration(run: _Run, generator: np.random.Generator) -> str:
    return _change_somewhere(run.fields["config"], generator)


def _state(run: _Run, generator: np.random.Generator) -> str:
    document = json.loads(run.content("state.json"))
    what = _change_somewhere(document, generator)
    run.put(run.entry("state.json"), json.dumps(document).encode())
    return what


def _records(run: _Run, generator: np.random.Generator) -> str:
    document = json.loads(run.content("history.json"))
    draw = int(generator.integers(4))
    if draw == 0:
        del document[int(generator.integers(len(document)))]
        what = "a record less"
    elif draw == 1:
        document.append({**document[-1], "generation": int(generator.integers(10))})
        what = "a record more"
    elif draw == 2:
        document = _VALUES[int(generator.integers(len(_VALUES)))]
        what = f"history {document!r}"
    else:
        names = ("generation", "fitness", "descent", "champion_agent", "weights_sha256", "replay_sha256", "trading")
        name = names[int(generator.integers(len(names)))]
        value = _VALUES[int(generator.integers(len(_VALUES)))]
        document[-1][name] = value
        what = f"{name} {value!r}"
    run.put(run.entry("history.json"), json.dumps(document).encode())
    return what


def _text(run: _Run, generator: np.random.Generator) -> str:
    names = ("state.json", "history.json", "telemetry.json", "champion.json")
    name = names[int(generator.integers(len(names)))]
    texts = [b"", b"[" * 100_000, b"NaN", b"[NaN]", b"1e999", b"\xff", b"9" * 5_000, b"null", b"[]", b"{}"]
    text = texts[int(generator.integers(len(texts)))]
    if (name, text) in (("telemetry.json", b"[]"),):
        return "telemetry of nothing"
    run.put(run.entry(name), text)
    return f"{name} is {text[:10]!r}"


def _tensors(run: _Run, generator: np.random.Generator) -> str:
    stem = ("population", "champion")[int(generator.integers(2))]
    tensors = _loaded(run.content(f"{stem}.safetensors"))
    name = sorted(tensors)[int(generator.integers(len(tensors)))]
    held = tensors[name]
    changes: dict[str, Callable[[], torch.Tensor | None]] = {
        "gone": lambda: None,
        "without its last row": lambda: held[:-1] if held.ndim else held[None],
        "wider": lambda: torch.cat([held, held], -1) if held.ndim else torch.zeros(7, dtype=held.dtype),
        "of another type": lambda: held.double() if held.is_floating_point() else held.to(torch.int32),
        "not a number": lambda: torch.full_like(held, float("nan")) if held.is_floating_point() else held - 5,
        "infinite": lambda: torch.full_like(held, float("inf")) if held.is_floating_point() else held + 2**40,
        "flat": lambda: held.reshape(-1, 1),
        "empty": lambda: held.new_zeros(0),
    }
    what = list(changes)[int(generator.integers(len(changes)))]
    changed = changes[what]()
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed.contiguous()
    entry = run.entry(f"{stem}.safetensors")
    run.put(entry, safetensors.torch.save(tensors))
    entry["tensors"] = [facts.model_dump(mode="json") for facts in tensor_infos(stem, tensors)]
    return f"{stem}: {name} {what}"


def _ring(run: _Run, generator: np.random.Generator) -> str:
    ring = run.fields["ring"]
    draw = int(generator.integers(6))
    if draw == 0:
        run.fields["ring"] = None
        return "no ring"
    if draw == 1:
        capacity = (1, 349, 351, 10**9, 10**14, 10**30)[int(generator.integers(6))]
        ring.update(capacity=capacity, size=min(capacity, ring["written"]))
        return f"capacity {capacity}"
    if draw == 2:
        ring["shards"] = ring["shards"][int(generator.integers(2)) :][:1]
        return "shards are gone"
    if draw == 3:
        size = 10 ** int(generator.integers(2, 14))
        ring["shards"] = [{**ring["shards"][-1], "first": 0, "count": size}]
        ring.update(written=size, size=min(size, ring["capacity"]))
        return f"one shard of {size} rows"
    if draw == 4:
        column = ring["columns"][int(generator.integers(len(ring["columns"])))]
        column["shape"] = [[], [1], [10**12], [4, 4, 4], [0]][int(generator.integers(5))]
        return f"column {column['name']} of shape {column['shape']}"
    return _change_somewhere(ring, generator)


def _older_parts(run: _Run, generator: np.random.Generator) -> str:
    """Parts of the generation before stand in the place of this one's."""
    older = run.older()
    parts = ["population.safetensors", "champion.safetensors", "state.json", "history.json", "ring"]
    chosen = parts[int(generator.integers(len(parts)))]
    if chosen == "ring":
        run.fields["ring"] = older["ring"]
    else:
        run.entry(chosen).update(next(entry for entry in older["files"] if entry["name"] == chosen))
    return f"{chosen} of the generation before"


_CHANGES: dict[str, Callable[[_Run, np.random.Generator], str]] = {
    "manifest": _manifest,
    "configuration in the manifest": _configuration,
    "state": _state,
    "history": _records,
    "text of a document": _text,
    "tensors": _tensors,
    "replay": _ring,
    "parts of an older generation": _older_parts,
}


def _change_somewhere(document: Document, generator: np.random.Generator) -> str:
    """Replace, remove or add a value anywhere in a document that is not empty."""
    places = _places(document)
    inner, key, path = places[int(generator.integers(len(places)))]
    draw = generator.random()
    if draw < 0.15 and isinstance(inner, dict):
        del inner[key]
        return f"{path} gone"
    if draw < 0.25 and isinstance(inner, dict):
        inner["unknown"] = 1
        return f"{path} beside something unknown"
    value = _VALUES[int(generator.integers(len(_VALUES)))]
    inner[key] = value
    return f"{path} is {value!r}"


def _places(document: Document, path: str = "") -> list[tuple[Any, Any, str]]:
    found: list[tuple[Any, Any, str]] = []
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        found.append((document, key, f"{path}.{key}"))
        if isinstance(value, dict | list):
            found += _places(value, f"{path}.{key}")
    return found


def _loaded(content: bytes) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(content)
