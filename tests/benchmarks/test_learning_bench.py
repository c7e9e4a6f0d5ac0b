"""The bench of markets makes each trial once, stops when its time is over, and writes what it has."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import trial as kept
from benchmarks.learning.bench import Part, make_missing, write
from benchmarks.learning.markets import MARKETS
from benchmarks.learning.trial import METHODS, Trial
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config

PART = Part("learning", "A title", (((("plain", 0.3), ("noise", 0.0)), tuple(METHODS)),), range(1, 3))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, int]]:
    """Trials that were made, without a training; the bench has two cases and two seeds."""
    calls: list[tuple[str, float, int]] = []

    def run_trial(market: str, edge: float, config: Config) -> dict[str, Any]:
        calls.append((market, edge, config.seed))
        known = {"champion": 80.0 + config.seed, "mean": 60.0, "best": 90.0, "random": -5.0, "hindsight": 600.0}
        return {
            "market": market,
            "edge": edge,
            "seed": config.seed,
            "share": known if edge else dict.fromkeys(known),
            "score": {"oracle": 100.0},
            "excess": 0.5,
            "claim": None if edge else "none",
            "cpu_s": 20.0,
        }

    monkeypatch.setattr(kept, "run_trial", run_trial)
    return calls


def test_every_trial_is_made_once(tmp_path: Path, made: list[tuple[str, float, int]]) -> None:
    make_missing(tmp_path, part=PART, minutes=1.0)
    assert len(made) == len(list(PART.planned())) == len(list(tmp_path.iterdir()))
    make_missing(tmp_path, part=PART, minutes=1.0)
    assert len(made) == len(list(tmp_path.iterdir()))


def test_no_trial_is_begun_after_the_time_allowed(tmp_path: Path, made: list[tuple[str, float, int]]) -> None:
    make_missing(tmp_path, part=PART, minutes=-1.0)
    assert not made
    with pytest.raises(InputError, match="There is no trial in"):
        write(tmp_path, part=PART, results=tmp_path / "RESULTS.md")


@pytest.mark.usefixtures("made")
@pytest.mark.thorough
def test_what_was_found_is_a_section_and_a_picture(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "RESULTS.md"
    (results.parent / "learning").mkdir(parents=True)
    make_missing(tmp_path / "trials", part=PART, minutes=1.0)
    write(tmp_path / "trials", part=PART, results=results)
    text = results.read_text()
    assert "| plain | 0.3 | both | 2 | 82 [81, 82] | 60 [60, 60] | 90 [90, 90] | 0.50 [0.50, 0.50] | - | 20 |" in text
    assert "| noise | 0 | both | 2 | - | - | - | 0.50 [0.50, 0.50] | 0 of 2 | 20 |" in text
    assert "| plain | 0.3 | random, as many trades |" in text
    assert f"\n{len(METHODS) * 4} trials.\n" in text
    assert (results.parent / "learning" / "learning.png").stat().st_size > 10_000


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings_that_can_be_used(method: str) -> None:
    config = Trial("memory", 0.3, method, 1).config
    assert config.generations == METHODS[method].generations
    assert config.trading.holding_days == config.trading.settlement_days == MARKETS["memory"].holding_days


def test_the_direct_method_is_the_preset_portfolio_on_the_days_of_the_market() -> None:
    given = [f"trading.{name}_days={MARKETS['factor'].holding_days}" for name in ("holding", "settlement")]
    preset = load_config("portfolio", given)
    config = Trial("factor", 0.3, "portfolio_direct", 1).config
    assert config.generations == preset.generations
    for section in ("portfolio", "network", "population", "exploration", "replay", "evolution", "evaluation"):
        assert getattr(config, section) == getattr(preset, section)
    # The task does not read it.
    assert config.trading.model_copy(update={"loss_multiplier": preset.trading.loss_multiplier}) == preset.trading
    assert config.learner == preset.learner
