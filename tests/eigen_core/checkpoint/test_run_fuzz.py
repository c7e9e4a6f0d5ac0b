"""Manifests that get new checksums after a change, and what is no file in the place of files, drawn at random."""

from pathlib import Path

import pytest

from benchmarks.fuzz import manifests, run_files
from benchmarks.fuzz.cases import findings, fuzz


@pytest.mark.thorough
def test_a_changed_manifest_is_refused_gone_around_or_trained_on_rightly(tmp_path: Path) -> None:
    outcomes = fuzz(manifests.one_case, "manifests", tmp_path, range(8), seed=7)
    assert findings(outcomes, "manifests", 7).faults == []


def test_what_is_no_file_is_refused_or_gone_around(tmp_path: Path) -> None:
    outcomes = fuzz(run_files.one_case, "run_files", tmp_path, range(8), seed=7)
    assert findings(outcomes, "run_files", 7).faults == []


@pytest.mark.slow
def test_many_more_of_both(tmp_path: Path) -> None:
    for name, module in (("manifests", manifests), ("run_files", run_files)):
        outcomes = fuzz(module.one_case, name, tmp_path, range(100), seed=8)
        assert findings(outcomes, name, 8).faults == []
