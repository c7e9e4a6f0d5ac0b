"""Journals beside a run's checkpoints, and memory reports that do not pile up."""

from pathlib import Path

import pytest
from flow_cases import small_flow_config
from memory_cases import bare_report

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.runs import journals
from eigen_core.runs.handle import Run


@pytest.fixture
def location(tmp_path: Path) -> RunLocation:
    return Run(small_flow_config(tmp_path).checkpoint, "run").begin(small_flow_config(tmp_path))


@pytest.mark.parametrize("content", [b"{}", b"[]", b"not json"])
def test_a_journal_that_cannot_be_read_counts_as_empty(
    location: RunLocation, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    stop = journals.Stop(moment=journals.now())
    journals.STOPS.append(location, stop)
    assert journals.STOPS.read(location) == [stop]
    location.stored.store.put("run/stops.json", content)
    assert journals.STOPS.read(location) == []
    assert "stops.json" in caplog.text
    journals.STOPS.append(location, stop)
    assert journals.STOPS.read(location) == [stop]


def test_only_the_newest_memory_reports_stay(location: RunLocation) -> None:
    written = [journals.write_memory_report(location, bare_report(), generation, "train") for generation in range(30)]
    left = journals.memory_reports(location.root / "run")
    assert left == written[:9:-1]
    assert len(list((location.root / "run" / "memory").iterdir())) == 2 * len(left)
