"""Benchmarks that write on a busy machine only what it does not change, and plain agents that copy no market."""

from pathlib import Path

import pytest
import torch
from science_cases import random_panel, small_config

from benchmarks import results
from benchmarks.plain import PlainAgent, PlainDdpg
from benchmarks.results import Section, keep
from eigen_core.replay import Replay
from eigen_core.task.market_transitions import market_columns

ORDER = ("population", "claims")


def section(title: str) -> Section:
    return Section(title, "Counted.", ("", "value"), [("one", "1")])


def test_times_are_not_written_on_a_busy_machine_and_counts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "RESULTS.md"
    monkeypatch.setattr(results, "RESULTS", path)
    monkeypatch.setattr(results, "LOAD", 0.4)
    keep({"population": section("Quiet")}, ORDER, path)
    before = path.read_text()
    assert "load average 0.4" in before
    monkeypatch.setattr(results, "LOAD", 1.1)
    with pytest.raises(SystemExit, match=r"load average was 1\.1 .* population"):
        keep({"population": section("Busy")}, ORDER, path)
    assert path.read_text() == before
    keep({"claims": section("Counts")}, ORDER, path)
    assert "Quiet" in path.read_text()
    assert "Counts" in path.read_text()


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_the_target_of_a_plain_agent_shares_the_market_and_nothing_that_learns(encoder: str) -> None:
    config = small_config(network={"encoder": encoder}, device="cpu")
    panel = random_panel(config)
    replay = Replay(8, market_columns(panel.assets, 4), torch.device("cpu"))
    learner = PlainDdpg(PlainAgent(panel, config), config, replay)
    assert learner.target.encoder.market is learner.agent.encoder.market
    assert learner.target.valid is learner.agent.valid
    for own, slow in zip(learner.agent.parameters(), learner.target.parameters(), strict=True):
        assert own is not slow
        assert own.data_ptr() != slow.data_ptr()
