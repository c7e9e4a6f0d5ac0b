"""How large the project is: lines, files, and the functions that a training executes.

`python -m benchmarks size` keeps the table; `python -m benchmarks.size` counts lines and files alone, and prints them.
"""

import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.results import Section

ROOT = Path(__file__).parents[1]
_PRODUCT = ("eigen_core", "tasks", "flows")
_LEARNING = (
    "eigen_core/learners/",
    "eigen_core/learning/",
    "eigen_core/evolution/",
    "eigen_core/trajectories",
    "eigen_core/networks/",
    "eigen_core/population.py",
    "eigen_core/replay.py",
    "eigen_core/task/",
    "eigen_core/trading/",
    "eigen_core/generation/",
    "eigen_core/training/state.py",
    "eigen_core/training/phases.py",
    "eigen_core/training/agents.py",
    "eigen_core/run.py",
    "tasks/phases.py",
)
"""Reinforcement learning: learners, evolution, networks, task, trading, and the run with its phases."""
_COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "`import torch`": (("-c", "import torch"), ""),
    "`eigen runs`": (("-m", "flows.cli", "runs", "--store", "{store}"), "0.7"),
    "`eigen status`": (("-m", "flows.cli", "status"), "0.7"),
}
"""Arguments of Python, and the most CPU seconds they should take."""
_REPEATS = 3


def run() -> Section:
    """Count lines, files and functions, and time the commands that print a table."""
    functions, files = executed_functions(("train", "--run", "size", "--generations", "2"))
    return _section(
        [
            [
                "functions executed by `eigen train`, 2 generations",
                f"{functions:,} of {files} files",
                "1,000 of 110 files",
            ],
            *([f"{name}: CPU s", f"{seconds:.2f}", goal] for name, seconds, goal in _command_seconds()),
        ]
    )


def _section(executed: Sequence[Sequence[str]]) -> Section:
    product = _python_files(*_PRODUCT)
    lines = {path: _lines(path) for path in product}
    learning = sum(count for path, count in lines.items() if _relative(path).startswith(_LEARNING))
    tests, benchmarks = _python_files("tests"), _python_files("benchmarks")
    folders = Counter(path.parent for path in product)
    folder, most_files = folders.most_common(1)[0]
    rows = [
        ["product: lines", f"{sum(lines.values()):,}", "37,000"],
        ["product: files", f"{len(product)}", "180"],
        ["product: median file, longest file (lines)", f"{median(lines.values()):.0f}, {max(lines.values())}", ""],
        [f"most files in one folder (`{_relative(folder)}`)", f"{most_files}", "20"],
        ["reinforcement learning: lines", f"{learning:,}", ""],
        ["reinforcement learning: share", f"{learning / sum(lines.values()):.1%}", "at least 33%"],
        ["tests: lines", f"{sum(map(_lines, tests)):,}", "32,000"],
        ["tests: files", f"{len(tests)}", ""],
        ["benchmarks: lines", f"{sum(map(_lines, benchmarks)):,}", "7,000"],
        ["benchmarks: files", f"{len(benchmarks)}", ""],
        *executed,
        *([f"`{package}`: lines, files", f"{count:,}, {files}", ""] for package, count, files in _packages(lines)),
    ]
    return Section(
        title="Size",
        method="Lines of Python files, blank ones and comments included. Functions: different functions of the product "
        "that the process of `eigen train` with two generations of quickstart calls, in all its threads; bodies of "
        "modules and classes, lambdas and comprehensions are not counted. CPU seconds: of a new process, the least of "
        f"{_REPEATS}.",
        columns=("", "counted", "goal, at most"),
        rows=rows,
    )


def executed_functions(arguments: Sequence[str]) -> tuple[int, int]:
    """Run `eigen` with these arguments in a process of its own.

    Returns:
        How many functions of the product it called, and of how many files they are.
    """
    with tempfile.TemporaryDirectory(prefix="eigen-size-", ignore_cleanup_errors=True) as folder:
        counted = Path(folder) / "functions.json"
        command = [sys.executable, "-m", "benchmarks.size", "profile", str(counted), *arguments]
        command += ["--store", f"{folder}/runs"]
        environment = os.environ | {"PREFECT_HOME": f"{folder}/prefect", "OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise RuntimeError(f"`eigen {' '.join(arguments)}` failed:\n{finished.stderr[-2000:]}")
        functions = json.loads(counted.read_text())
    return len(functions), len({file for file, _, _ in functions})


def count_calls(counted: Path, run: Callable[[], None]) -> None:
    """Write to `counted` which functions of the product `run` calls: file, first line and name of each."""
    folders = tuple(f"{ROOT / name}{os.sep}" for name in _PRODUCT)
    codes = set()

    def note(frame: object, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)  # type: ignore[attr-defined]

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        # Bodies of modules and classes have no fast locals; comprehensions and lambdas belong to their functions.
        called = [
            (_relative(Path(code.co_filename)), code.co_firstlineno, code.co_qualname)
            for code in list(codes)
            if code.co_filename.startswith(folders)
            and code.co_flags & inspect.CO_OPTIMIZED
            and not code.co_name.startswith("<")
        ]
        counted.write_text(json.dumps(sorted(called)))


def _packages(lines: dict[Path, int]) -> Iterable[tuple[str, int, int]]:
    """Lines and files of each package, the largest first."""
    totals: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, count in lines.items():
        package = str(Path(*path.relative_to(ROOT).parts[:-1][:2]))
        totals[package] += count
        files[package] += 1
    for package, count in totals.most_common():
        yield package, count, files[package]


def _command_seconds() -> Iterable[tuple[str, float, str]]:
    """CPU seconds of a new process for each measured command, its children included."""
    with tempfile.TemporaryDirectory(prefix="eigen-size-") as folder:
        environment = os.environ | {"EIGEN_HOME": f"{folder}/home", "PREFECT_HOME": f"{folder}/prefect"}
        for name, (arguments, goal) in _COMMANDS.items():
            taken = []
            for _ in range(_REPEATS):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                command = [sys.executable, *(argument.format(store=folder) for argument in arguments)]
                subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
            yield name, min(taken), goal


def _python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _profile(counted: Path, arguments: Sequence[str]) -> None:
    """Be `eigen` with these arguments, and write which functions it called."""
    sys.argv = ["eigen", *arguments]

    def eigen() -> None:
        from flows.cli.app import main as command_line

        command_line()

    count_calls(counted, eigen)


if __name__ == "__main__":
    if sys.argv[1:2] == ["profile"]:
        _profile(Path(sys.argv[2]), sys.argv[3:])
    else:
        _section(()).show(Console())
