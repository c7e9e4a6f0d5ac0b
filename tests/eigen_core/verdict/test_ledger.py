"""Every look at days of the same symbols counts, whichever run it was made for."""

from pathlib import Path

import pytest

from eigen_core.errors import InputError
from eigen_core.store import open_store
from eigen_core.store.location import check_run_name
from eigen_core.verdict.ledger import Look, looks_at, record_look


def look_of(agent: str, first: str = "2021-01-04", last: str = "2021-12-31", **changes: object) -> Look:
    values = {"symbols": ("A", "B"), "settings": "rules", "run": "one", "sharpe": 0.1, **changes}
    return Look.model_validate({"first": first, "last": last, "agent": agent, **values})


def test_the_same_look_counts_once_and_overlapping_days_count(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for look in (
        look_of("a"),
        look_of("a", run="a copy of it"),
        look_of("a", first="2021-06-01"),
        look_of("b", first="2021-12-31", last="2022-12-30", run="two", sharpe=None),
        look_of("a", settings="other rules"),
        look_of("c", last="2020-12-31", first="2020-01-02"),
        look_of("d", symbols=("C",)),
    ):
        record_look(store, look)
    looks = looks_at(store, ["B", "X"], "2021-01-04", "2021-12-31")
    assert looks.count == 3
    assert {look.run for look in looks.known} == {"one", "two"}
    assert looks.sharpes == (0.1, 0.1)
    assert looks_at(store, ["C"], "2021-01-04", "2021-12-31").count == 1
    assert looks_at(store, ["A"], "2019-01-01", "2019-12-31").count == 0


def test_damaged_looks_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(str(tmp_path))
    record_look(store, look_of("a"))
    damaged = look_of("b")
    store.put(damaged.name, b"{not json")
    store.put("looks/something else.json", b"")
    assert looks_at(store, ["A"], "2021-05-01", "2021-06-01").count == 3
    assert caplog.text.count("counts as a look") == 2


def test_no_run_takes_the_ledgers_name() -> None:
    with pytest.raises(InputError, match="the store has a folder of that name"):
        check_run_name("looks")
