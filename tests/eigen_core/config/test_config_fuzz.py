"""Settings with drawn values, given in every way: accepted as they were meant, or refused by name."""

from pathlib import Path

from benchmarks.fuzz import configuration
from benchmarks.fuzz.cases import findings, fuzz


def test_no_drawn_setting_is_misread(tmp_path: Path) -> None:
    outcomes = fuzz(configuration.one_case, "configuration", tmp_path, range(60), seed=7)
    assert findings(outcomes, "configuration", 7).faults == []
