"""What the command line imports: nothing that a training needs before one is asked for; how often it opens a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from flow_cases import eigen_environment, small_settings
from trained_run_cases import trained

SLOW = ("torch", "prefect", "pandas", "numpy", "yaml", "httpx", "psutil", "eigen_core.config")
OF_A_TRAINING = ("torch", "scipy", "arch", "statsmodels", "pandas", "prefect")


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which prints the modules that it has loaded to its standard error."""
    code = (
        "import sys\nfrom flows.cli.app import app\n"
        f"try:\n    app({words})\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    command, environment = [sys.executable, "-c", code], eigen_environment(folder / "prefect")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=folder)


@pytest.mark.parametrize("command", [[], ["train"], ["runs"], ["up"]], ids=" ".join)
def test_help_imports_nothing_that_takes_long(command: list[str], tmp_path: Path) -> None:
    ended = ran([*command, "--help"], tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Usage:" in ended.stdout
    assert set(SLOW) & set(ended.stderr.split()) == set()


def test_a_table_of_runs_is_printed_without_what_a_training_loads(tmp_path: Path) -> None:
    trained(tmp_path / "runs", "first", of=1)
    for command in (["runs"], ["show", "first"], ["show", "first", "--json"], ["status"]):
        ended = ran(command, tmp_path)
        assert "first" in ended.stdout, ended.stderr
        assert set(OF_A_TRAINING) & set(ended.stderr.split()) == set(), command


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (".env", "PREFECT_API_URL=http://127.0.0.1:9/api"),
        ("prefect.toml", '[api]\nurl = "http://127.0.0.1:9/api"'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://127.0.0.1:9/api"'),
    ],
)
@pytest.mark.thorough
def test_a_server_that_a_file_of_prefect_names_is_still_asked(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    said = ran(["logs", "first"], tmp_path).stderr
    assert "http://127.0.0.1:9" in said
    # What does not answer is named with its file.
    assert f"remove its URL from {tmp_path / file}: then" in said


@pytest.mark.parametrize("flow_run", ["", "0b8e3c5a-7f3e-4a55-9a4e-2f4d1c5b7a90"], ids=["hook", "flow run"])
def test_the_process_of_a_flow_run_loads_its_training_before_threads_of_prefect_begin(
    tmp_path: Path, flow_run: str
) -> None:
    """Old releases of Python 3.11 and 3.12 may raise a SystemError if two threads parse sources at the same time."""
    environment = eigen_environment(tmp_path / "prefect") | ({"PREFECT__FLOW_RUN_ID": flow_run} if flow_run else {})
    code = "import flows.server.flows, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert ("flows.server.training_flow" in ended.stdout.split()) == bool(flow_run)
    assert ("torch" in ended.stdout.split()) == bool(flow_run)


COUNTED = """
import sys
from collections import Counter
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.runs.handle import Run
from flows.cli.app import app
made = Counter()
for kind in (Run, RunLocation, RunContents):
    def counted(self, *given, kind=kind, init=kind.__init__, **named):
        made[kind.__name__] += 1
        init(self, *given, **named)
    kind.__init__ = counted
try:
    app(sys.argv[1:])
finally:
    print(*(made[kind.__name__] for kind in (Run, RunLocation, RunContents)))
"""


@pytest.mark.thorough
def test_one_handle_of_a_run_is_passed_on(tmp_path: Path) -> None:
    environment = eigen_environment(tmp_path / "prefect")
    for words, expected in (
        (["train", "--run", "run", "--generations", "1", *small_settings()], [1, 1, 2]),
        (["resume", "run", "--generations", "2"], [1, 1, 1]),
    ):
        command = [sys.executable, "-c", COUNTED, *words]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
        assert [int(count) for count in ended.stdout.splitlines()[-1].split()] == expected, words
