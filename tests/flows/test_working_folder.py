"""No command and no process that it starts imports a module from its working folder, which may be anyone's."""

import ast
import os
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from flow_cases import eigen_environment, run_eigen, small_settings
from operated import Operated

ROOT = Path(__file__).parents[2]
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


ONE = [*small_settings(market={"holdout_days": 60}, reporting={"plot_every": 1}), "--generations", "1"]


@pytest.mark.parametrize(
    "command",
    [["train", *ONE, "--set", "workers=2"], ["walk", "years", "--folds", "2", "--jobs", "2", *ONE]],
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
