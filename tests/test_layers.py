"""Packages import downwards only, and the walls between the readers of the code hold."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("eigen_core", "tasks", "flows")
JUDGING = {"judging", "reporting", "housekeeping", "memory_watch", "run"}
"""Parts of `eigen_core` above `runs`: training imports none of them."""
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


@cache
def arrows() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for module, file in files():
        part = part_of(module)
        for imported in imports_of(file):
            if imported.split(".")[0] in PRODUCT and part_of(imported) != part:
                found.setdefault(part, {}).setdefault(part_of(imported), str(file.relative_to(ROOT)))
    return found


def test_no_circle_of_packages() -> None:
    left = dict(arrows())
    while lowest := [part for part, imported in left.items() if not imported.keys() & left.keys()]:
        for part in lowest:
            del left[part]
    circles = {
        part: {other: file for other, file in imported.items() if other in left} for part, imported in left.items()
    }
    assert circles == {}


def test_the_core_knows_no_prefect_and_nothing_above_it() -> None:
    above = {"prefect", "tasks", "flows", "benchmarks", "tests"}
    core = [(module, name) for module, file in files() if module.startswith("eigen_core") for name in imports_of(file)]
    assert [(module, name) for module, name in core if name.split(".")[0] in above] == []


def test_training_never_imports_what_judges_and_reports() -> None:
    above = {*JUDGING, "flows", "tasks"}
    below = {part: imported.keys() & JUDGING for part, imported in arrows().items() if part.split(".")[0] not in above}
    assert not any(below.values()), below


@pytest.mark.parametrize("package", PRODUCT)
def test_a_folder_has_at_most_twenty_files(package: str) -> None:
    folders = [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}
