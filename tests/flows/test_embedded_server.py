"""A new database of the embedded server is a copy of the one that is kept; one that exists is never touched."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from flow_cases import eigen_environment

from flows.embedded_server import begin_with_copy, keep


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A database that is kept."""
    path = tmp_path / "cache" / "kept.db"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE runs (value)")
        keep(path, connection.serialize())
    return path


def test_a_new_home_begins_with_a_copy(tmp_path: Path, kept: Path) -> None:
    for home in ("one", "two"):
        begin_with_copy(tmp_path / home / "prefect.db", kept)
        with closing(sqlite3.connect(tmp_path / home / "prefect.db")) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("runs",)]
        assert [path.name for path in (tmp_path / home).iterdir()] == ["prefect.db"]


@pytest.mark.parametrize("left", ["prefect.db", "prefect.db-wal", "prefect.db-shm", "prefect.db-journal"])
def test_a_database_or_what_one_has_left_is_not_touched(tmp_path: Path, kept: Path, left: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / left).write_bytes(b"the user's")
    begin_with_copy(home / "prefect.db", kept)
    assert [path.name for path in home.iterdir()] == [left]
    assert (home / left).read_bytes() == b"the user's"


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"no database at all",
        lambda content: content[: len(content) // 2],
        lambda content: content[:4096] + bytes(len(content) - 4096),
    ],
)
def test_what_is_damaged_is_not_copied(tmp_path: Path, kept: Path, damage: Callable[[bytes], bytes]) -> None:
    kept.write_bytes(damage(kept.read_bytes()))
    begin_with_copy(tmp_path / "home" / "prefect.db", kept)
    assert not (tmp_path / "home").exists()


def test_without_one_nothing_is_written(tmp_path: Path) -> None:
    begin_with_copy(tmp_path / "home" / "prefect.db", tmp_path / "kept.db")
    assert list(tmp_path.iterdir()) == []


def test_the_server_loads_nothing_that_only_a_training_needs() -> None:
    code = "import sys, flows.embedded_server; print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "set()\n"


@pytest.mark.thorough
def test_without_a_port_nothing_is_served_or_written(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "flows.embedded_server", "serve"]
    environment = eigen_environment(tmp_path / "home")
    ended = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not list(tmp_path.rglob("prefect.db*"))
