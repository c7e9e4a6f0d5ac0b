"""A new database of the embedded server is a copy of the one that is kept; one that exists is never touched."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flows.embedded_server import begin_with_copy


def _content(name: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE {name} (value)")
        return connection.serialize()


def _never() -> bytes:
    raise AssertionError("migrated needlessly")


def _tables(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def test_what_was_migrated_once_is_copied_into_each_new_home(tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "kept.db"
    begin_with_copy(tmp_path / "one" / "prefect.db", kept, lambda: _content("runs"))
    begin_with_copy(tmp_path / "two" / "prefect.db", kept, _never)
    for home in ("one", "two"):
        assert _tables(tmp_path / home / "prefect.db") == ["runs"]
        assert [path.name for path in (tmp_path / home).iterdir()] == ["prefect.db"]


@pytest.mark.parametrize("left", ["prefect.db", "prefect.db-wal", "prefect.db-shm", "prefect.db-journal"])
def test_a_database_or_what_one_has_left_is_not_touched(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"the user's")
    begin_with_copy(tmp_path / "prefect.db", tmp_path / "cache" / "kept.db", _never)
    assert [path.name for path in tmp_path.iterdir()] == [left]
    assert (tmp_path / left).read_bytes() == b"the user's"


def test_a_database_that_another_server_has_made_meanwhile_stays(tmp_path: Path) -> None:
    database = tmp_path / "home" / "prefect.db"

    def migrated() -> bytes:
        database.write_bytes(b"the other server's")
        return _content("runs")

    begin_with_copy(database, tmp_path / "kept.db", migrated)
    assert database.read_bytes() == b"the other server's"
    assert [path.name for path in database.parent.iterdir()] == ["prefect.db"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"no database at all",
        lambda content: content[: len(content) // 2],
        lambda content: content[:4096] + bytes(len(content) - 4096),
    ],
)
def test_what_is_kept_but_damaged_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    kept = tmp_path / "kept.db"
    kept.write_bytes(damage(_content("runs")))
    begin_with_copy(tmp_path / "home" / "prefect.db", kept, lambda: _content("anew"))
    assert _tables(tmp_path / "home" / "prefect.db") == ["anew"]
    assert _tables(kept) == ["anew"]
