"""Price files whose right reading is known, drawn at random."""

from pathlib import Path

from benchmarks.fuzz import layouts, prices
from benchmarks.fuzz.cases import findings, fuzz


def test_no_drawn_price_file_is_misread(tmp_path: Path) -> None:
    outcomes = fuzz(prices.one_case, "prices", tmp_path, range(40), seed=7)
    assert findings(outcomes, "prices", 7).faults == []


def test_no_drawn_layout_is_misread(tmp_path: Path) -> None:
    outcomes = fuzz(layouts.one_case, "layouts", tmp_path, range(25), seed=7)
    assert findings(outcomes, "layouts", 7).faults == []
