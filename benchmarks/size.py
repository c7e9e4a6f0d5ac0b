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
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.results import Section

ROOT = Path(__file__).parents[1]
_PRODUCT = ("eigen_core", "tasks", "flows")
_LEARNING = (
    *(f"eigen_core/{name}" for name in ("learning", "networks", "task/", "trading", "generation", "run.py")),
    "tasks",
)
"""Beginnings of paths of reinforcement learning: learning, networks, tasks, trading, the run, its phases."""
_COMMANDS: dict[str, tuple[str, ...]] = {
    "import torch": ("-c", "import torch"),
    "eigen runs": ("-m", "flows.cli", "runs", "--store", "{folder}"),
    "eigen status": ("-m", "flows.cli", "status"),
}
_REPEATS = 3


def run() -> Section:
    functions, files = executed_functions(("train", "--run", "size", "--generations", "2"))
    calls = f"{functions:,} of {files} files"
    return _section(
        [
            ["functions executed by `eigen train`, 2 generations", calls, "1,000 of 110 files"],
            *(
                [f"`{name}`: CPU s", f"{seconds:.2f}", "0.7" * name.startswith("eigen")]
                for name, seconds in _command_seconds()
            ),
        ]
    )


def _section(executed: Sequence[Sequence[str]]) -> Section:
    product = _lines_of(*_PRODUCT)
    learning = sum(count for path, count in product.items() if path.as_posix().startswith(_LEARNING))
    (folder, most_files), *_ = Counter(path.parent for path in product).most_common(1)
    tests, benchmarks = _lines_of("tests"), _lines_of("benchmarks")
    total = sum(product.values())
    rows = [
        ["product: lines", f"{total:,}", "37,000"],
        ["product: files", f"{len(product)}", "180"],
        ["product: longest file (lines)", f"{max(product.values())}", "700"],
        [f"most files in one folder (`{folder.as_posix()}`)", f"{most_files}", "20"],
        ["share of reinforcement learning", f"{learning / total:.1%}, {learning:,} lines", "at least 33%"],
        ["tests: lines", f"{sum(tests.values()):,} in {len(tests)} files", "32,000"],
        ["benchmarks: lines", f"{sum(benchmarks.values()):,} in {len(benchmarks)} files", "7,000"],
        *executed,
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
        command = [sys.executable, "-P", "-m", "benchmarks.size", str(counted), *arguments, "--store", f"{folder}/runs"]
        environment = {"PREFECT_HOME": f"{folder}/prefect", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        finished = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise RuntimeError(f"`eigen {' '.join(arguments)}` failed:\n{finished.stderr[-2000:]}")
        functions = json.loads(counted.read_text())
    return len(functions), len({file for file, _, _ in functions})


def _count_calls(counted: Path, arguments: Sequence[str]) -> None:
    """Be `eigen` with these arguments; write file, first line and name of each function that was called."""
    codes = set()

    def note(frame: object, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)  # type: ignore[attr-defined]

    sys.argv = ["eigen", *arguments]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from flows.cli.app import main as eigen

        eigen()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        folders = tuple(f"{ROOT / name}{os.sep}" for name in _PRODUCT)
        # Bodies of modules and classes have no fast locals; comprehensions and lambdas belong to their functions.
        called = [
            (code.co_filename, code.co_firstlineno, code.co_qualname)
            for code in list(codes)
            if code.co_filename.startswith(folders)
            and code.co_flags & inspect.CO_OPTIMIZED
            and not code.co_name.startswith("<")
        ]
        counted.write_text(json.dumps(called))


def _command_seconds() -> Iterable[tuple[str, float]]:
    """CPU seconds of a new process for each measured command, its children included."""
    with tempfile.TemporaryDirectory(prefix="eigen-size-") as folder:
        environment = os.environ | {"EIGEN_HOME": f"{folder}/home", "PREFECT_HOME": f"{folder}/prefect"}
        for name, arguments in _COMMANDS.items():
            taken = []
            for _ in range(_REPEATS):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                command = [sys.executable, "-P", *(argument.format(folder=folder) for argument in arguments)]
                subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
            yield name, min(taken)


def _lines_of(*folders: str) -> dict[Path, int]:
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8").count("\n") for path in found}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _count_calls(Path(sys.argv[1]), sys.argv[2:])
    else:
        _section(()).show(Console())
