"""What the command line imports: nothing that a training needs before one is asked for; how often it opens a run.

No command and no process that it starts imports a module from its working folder, which may be anyone's.
"""

import ast
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from cli_cases import eigen
from flow_cases import eigen_environment, run_eigen, small_settings
from operated import Operated
from trained_run_cases import trained

from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.runs.handle import Run

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


@pytest.mark.parametrize(
    "flow_run",
    [
        pytest.param("", id="hook"),
        pytest.param("0b8e3c5a-7f3e-4a55-9a4e-2f4d1c5b7a90", id="flow run", marks=pytest.mark.thorough),
    ],
)
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


@pytest.mark.usefixtures("user_folder")
def test_one_handle_of_a_run_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[type] = Counter()
    kinds = (Run, RunLocation, RunContents)
    for kind in kinds:

        def counted(self: Any, *given: Any, kind: Any = kind, init: Any = kind.__init__, **named: Any) -> None:
            made[kind] += 1
            init(self, *given, **named)

        monkeypatch.setattr(kind, "__init__", counted)
    for words, expected in (
        (["train", "--run", "run", "--generations", "1", *small_settings()], [1, 1, 2]),
        (["resume", "run", "--generations", "2"], [1, 1, 1]),
    ):
        made.clear()
        eigen(*words, code=0)
        assert [made[kind] for kind in kinds] == expected, words


ROOT = Path(__file__).parents[3]
_FOLDERS = ("eigen_core", "tasks", "flows", "deployments", "benchmarks", "docs")
_OWN = ("eigen_core", "tasks", "flows", "deployments", "sitecustomize", "usercustomize")


def _is_interpreter(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def test_each_interpreter_that_is_started_leaves_out_its_working_folder() -> None:
    commands, uses = 0, 0
    for path in (path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        printed = {id(node) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for node in ast.walk(text)}
        uses += sum(_is_interpreter(node) and id(node) not in printed for node in ast.walk(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.List) and node.elts and _is_interpreter(node.elts[0]):
                assert ast.unparse(node.elts[1]) == "'-P'", f"{path}, line {node.lineno}"
                commands += 1
    # `sys.executable` is nowhere else but in such a list, and in messages.
    assert commands == uses > 5


def poison(folder: Path) -> Path:
    """Put a module of each name that Python could import into a folder; return the file that they write to."""
    executed = folder.parent / "executed"
    code = f"import os\nopen({str(executed)!r}, 'a').write(f'{{__name__}} in {{os.getpid()}}\\n')\n"
    for name in {*sys.stdlib_module_names, *packages_distributions(), *_OWN}:
        (folder / f"{name}.py").write_text(code)
    return executed


ONE = [*small_settings(market={"holdout": 60}, reporting={"plot_every": 1}), "--generations", "1"]


@pytest.mark.parametrize(
    "command",
    [["train", *ONE, "--set", "workers=1"], ["walk", "years", "--folds", "1", "--jobs", "2", *ONE]],
    ids=lambda words: words[0],
)
@pytest.mark.thorough
def test_a_command_executes_no_module_of_its_working_folder(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    executed = poison(folder)
    # As in a user's shell: the command itself has to see to its children.
    environment = {key: value for key, value in eigen_environment(tmp_path / "home").items() if key != "PYTHONSAFEPATH"}
    ended = run_eigen(command, environment=environment, folder=folder)
    assert not executed.exists(), executed.read_text()
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.thorough
def test_a_server_its_worker_and_their_flow_runs_execute_no_module_of_their_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    executed = poison(folder)
    with Operated(folder) as operated:
        operated.up()
        number = operated.launch("first", [*small_settings(), "--generations", "1"])
        assert operated.wait_for_end(number) == "Completed"
        # The run is where the worker was started.
        assert (folder / "runs" / "first").is_dir()
        operated.down()
    assert not executed.exists(), executed.read_text()


CALLS = "version: 1\nformatters: {called: {(): os.mkdir, path: executed}}\n"


@pytest.mark.parametrize(
    ("file", "content", "refused"),
    [
        (".env", "export Prefect_Logging_Config_Path=called.yml", "PREFECT_LOGGING_CONFIG_PATH"),
        (".env", "PREFECT_HOME = .", "PREFECT_HOME"),
        (".env", "PREFECT_PROFILES_PATH='profiles.toml'", "PREFECT_PROFILES_PATH"),
        ("prefect.toml", 'logging = {config_path = "called.yml"}', "PREFECT_LOGGING_CONFIG_PATH"),
        ("prefect.toml", "logging = [", "prefect.toml cannot be read"),
        ("pyproject.toml", '[tool.prefect]\nhome = "."', "PREFECT_HOME"),
        (".env", "PREFECT_LOGGING_LEVEL=DEBUG\nOTHER=1", ""),
        (".env", "", "Cannot read"),  # a pipe, which nobody writes to
        ("prefect.toml", "", "Cannot read"),
        ("pyproject.toml", '[tool.prefect.logging]\nlevel = "DEBUG"\n[tool.other]\nhome = "."', ""),
    ],
)
def test_no_settings_file_of_the_working_folder_chooses_code(
    tmp_path: Path, file: str, content: str, refused: str
) -> None:
    if content:
        (tmp_path / file).write_text(content)
    else:
        os.mkfifo(tmp_path / file)
    for name in ("called.yml", "logging.yml"):
        (tmp_path / name).write_text(CALLS)
    ended = run_eigen(["logs", "first"], environment=eigen_environment(tmp_path / "home"), folder=tmp_path)
    assert not (tmp_path / "executed").exists()
    assert ended.returncode == 2
    assert refused in ended.stderr
    assert ("No server runs here" in ended.stderr) == (not refused)
