"""Packages and files import downwards only, and the walls between the readers of the code hold."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("eigen_core", "tasks", "flows")
JUDGING = {"judging", "reporting", "housekeeping"}
"""Parts of `eigen_core` above a training, which imports none of them."""
MOST_FILES = 20


def part_of(module: str) -> str:
    """The package of a module: `checkpoint` of `eigen_core.checkpoint.replay_shards`, `flows.cli`, `tasks`."""
    first, *rest = module.split(".")
    if first == "eigen_core":
        return rest[0] if rest else first
    return ".".join([first, *rest[:1]]) if first == "flows" else first


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            yield from [name.name for name in node.names]


def files() -> Iterator[tuple[str, Path]]:
    for package in PRODUCT:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield module, file


Arrows = dict[str, dict[str, str]]


@cache
def arrows(of_files: bool = False) -> Arrows:
    """The imports of each package, or file, also in functions and for type checkers; each with a file that has it."""
    found: Arrows = {}
    known = {module for module, _ in files()}
    for module, file in files():
        for imported in imports_of(file):
            # A name that is no module is in the module before its last dot.
            target = imported if imported in known else imported.rpartition(".")[0]
            here, there = (module, target) if of_files else (part_of(module), part_of(imported))
            if imported.split(".")[0] in PRODUCT and here != there:
                found.setdefault(here, {}).setdefault(there, str(file.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("of_files", [False, True])
def test_no_circle_of_packages_or_files(of_files: bool) -> None:
    TopologicalSorter(arrows(of_files)).prepare()  # its `CycleError` names the circle


def test_the_core_knows_no_prefect_and_nothing_above_it() -> None:
    above = {"prefect", "tasks", "flows", "benchmarks", "tests"}
    core = [(module, name) for module, file in files() if module.startswith("eigen_core") for name in imports_of(file)]
    assert [(module, name) for module, name in core if name.split(".")[0] in above] == []


def test_training_never_imports_what_judges_and_reports() -> None:
    above = {*JUDGING, "flows", "tasks"}
    below = {part: imported.keys() & JUDGING for part, imported in arrows().items() if part.split(".")[0] not in above}
    assert not any(below.values()), below
    code = "import sys, eigen_core.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert {part_of(name) for name in loaded.split() if name.startswith("eigen_core.")} & JUDGING == set()


@pytest.mark.parametrize("package", PRODUCT)
def test_a_folder_has_at_most_twenty_files(package: str) -> None:
    folders = [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}
