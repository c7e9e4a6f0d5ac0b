"""Benchmarks that write on a busy machine only what it does not change."""

from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import Section, keep

ORDER = ("pauses", "claims")


def section(title: str) -> Section:
    return Section(title, "Counted.", ("", "value"), [("one", "1")])


def test_times_are_not_written_on_a_busy_machine_and_counts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "RESULTS.md"
    monkeypatch.setattr(results, "RESULTS", path)
    monkeypatch.setattr(results, "LOAD", 0.4)
    keep({"pauses": section("Quiet")}, ORDER, path)
    before = path.read_text()
    assert "load average 0.4" in before
    monkeypatch.setattr(results, "LOAD", 1.1)
    with pytest.raises(SystemExit, match=r"load average was 1\.1 .* pauses"):
        keep({"pauses": section("Busy")}, ORDER, path)
    assert path.read_text() == before
    keep({"claims": section("Counts")}, ORDER, path)
    assert "Quiet" in path.read_text()
    assert "Counts" in path.read_text()
