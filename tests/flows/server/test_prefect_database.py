"""What a Prefect server could not begin with is a sentence: of doctor and of `eigen up`; a training needs none."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from flow_cases import eigen_environment, run_eigen
from kept_database import kept_file

COMMANDS = {"up": ["up"]}


def text(path: Path) -> str:
    """A file that is no database."""
    path.write_text("dear diary, " * 1_000)
    return "cannot be read"


def newer(path: Path) -> str:
    """The database of a version of Prefect that does not exist yet."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE flow_run (id TEXT)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
    return "is the database of another version of Prefect"


def other(path: Path) -> str:
    """A database of something else."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    return "none of Prefect"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user's environment, with an empty home of Prefect."""
    (tmp_path / "prefect").mkdir()
    return eigen_environment(tmp_path / "prefect", EIGEN_HOME=str(tmp_path / "state"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("make", [text, newer, other])
@pytest.mark.thorough
def test_a_database_that_is_none_is_refused_before_anything_starts(
    environment: dict[str, str], tmp_path: Path, make: object, command: str
) -> None:
    assert callable(make)
    part = make(tmp_path / "prefect" / "prefect.db")
    content = (tmp_path / "prefect" / "prefect.db").read_bytes()
    ended = run_eigen(COMMANDS[command], environment=environment, folder=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert part in ended.stderr
    assert "set PREFECT_HOME" in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "state").exists()
    assert (tmp_path / "prefect" / "prefect.db").read_bytes() == content


@pytest.mark.parametrize("make", [text, newer, other])
@pytest.mark.thorough
def test_doctor_fails_on_it(environment: dict[str, str], tmp_path: Path, make: object) -> None:
    assert callable(make)
    part = make(tmp_path / "prefect" / "prefect.db")
    ended = run_eigen(["doctor", "--json"], environment=environment, folder=tmp_path)
    assert ended.returncode == 1
    (failed,) = (check for check in json.loads(ended.stdout)["checks"] if check["status"] == "failed")
    assert part in failed["found"]


@pytest.mark.thorough
def test_a_database_of_this_version_is_used(environment: dict[str, str], tmp_path: Path) -> None:
    if not kept_file().is_file():
        pytest.skip("no database of Prefect is kept")
    shutil.copy(kept_file(), tmp_path / "prefect" / "prefect.db")
    ended = run_eigen(["doctor", "--json"], environment=environment, folder=tmp_path)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("command", ["up", "doctor"])
@pytest.mark.thorough
def test_a_home_that_cannot_be_is_one_sentence(environment: dict[str, str], tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("no folder")
    del environment["PREFECT_HOME"]
    environment["HOME"] = str(tmp_path / "file" / "home")
    ended = run_eigen(COMMANDS.get(command, [command]), environment=environment, folder=tmp_path)
    said = ended.stdout if command == "doctor" else ended.stderr
    assert ended.returncode == (1 if command == "doctor" else 2)
    assert "correct HOME, or set PREFECT_HOME" in " ".join(said.split())
    assert ended.stderr.count("\n") == (0 if command == "doctor" else 1), ended.stderr
    assert not (tmp_path / "state").exists()
    assert os.listdir(tmp_path / "prefect") == []
