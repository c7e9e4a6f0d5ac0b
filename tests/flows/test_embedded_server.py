"""A new database of the embedded server is a copy of the one that is kept; one that exists is never touched."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

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
