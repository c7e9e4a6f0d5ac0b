"""Benchmarks that write on a busy machine only what it does not change, and time equal work on both sides."""

from pathlib import Path

import pytest
from science_cases import random_panel, small_config

from benchmarks import environment, results
from benchmarks.plain import PlainAgent
from benchmarks.results import Section, keep

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
def test_a_copy_of_a_plain_agent_shares_the_market_and_nothing_that_learns(encoder: str) -> None:
    config = small_config(network={"encoder": encoder}, device="cpu")
    agent = PlainAgent(random_panel(config), config)
    other = agent.copy()
    assert other.encoder.market is agent.encoder.market
    assert other.valid is agent.valid
    for mine, its in zip(agent.parameters(), other.parameters(), strict=True):
        assert mine.data_ptr() != its.data_ptr()


def test_the_plain_loop_of_the_environment_earns_the_same_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_EPISODES": (3,), "_SLOW_EPISODES": 3, "_ASSETS": (8,), "_PANEL_DAYS": 250, "_ROUNDS": 1}
    for name, size in sizes.items():
        monkeypatch.setattr(environment, name, size)
    assert len(environment.run().rows) == 1
