"""Trials of the verdict: what is counted, what is kept, what is refused."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from eigen_core.common.progress import report_progress
from eigen_core.judging.trust import Claims, Trial, Trust, TrustTrials, trust_of
from flows.cli.app import app
from flows.cli.display import BarDisplay
from flows.cli.judging import edges_in

_SMALL = (
    "generations=1",
    "population.size=2",
    "market.window=8",
    "network.scales=[1,5]",
    "trading.trading_days=20",
    "evaluation.slices=1",
    "evaluation.lowest=1",
    "learner.gradient_steps=1",
)


def eigen(*arguments: str) -> Result:
    """Run `eigen trust` with small trials in this process."""
    settings = [part for setting in _SMALL for part in ("--set", setting)]
    return CliRunner().invoke(app, ["trust", "us5", "--trials", "1", *arguments, *settings])


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    assert Claims(100, 5).interval == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert Claims(20, 0).interval == pytest.approx((0.0, 0.1684), abs=1e-4)
    assert Claims(20, 20).interval == pytest.approx((0.8316, 1.0), abs=1e-4)
    assert Claims(0, 0).interval is None
    assert Claims(0, 0).share is None


@pytest.mark.parametrize(
    ("claimed", "smallest"), [((1, 8, 9), 0.1), ((9, 9, 9), 0.05), ((9, 2, 9), 0.2), ((9, 9, 7), None)]
)
def test_the_smallest_edge_is_found_in_most_trials_as_are_all_greater_ones(
    claimed: tuple[int, ...], smallest: float | None
) -> None:
    power = {edge: Claims(10, number) for edge, number in zip((0.05, 0.1, 0.2), claimed, strict=True)}
    trust = Trust(Claims(10, 0), power)
    assert trust.smallest_edge == smallest
    expected = "none of those tried" if smallest is None else f"{smallest:g}"
    assert f"is {expected} (information coefficients tried: 0.05, 0.1, 0.2)" in trust.sentences[1]


def test_trials_are_counted_by_their_edge() -> None:
    def trial(edge: float | None, claim: str) -> Trial:
        found = {"edge": edge, "seed": 1, "claim": claim, "matched_pvalue": 0.5, "trades": 3}
        return Trial.model_validate({**found, "excess": None, "excess_pvalue": None})

    trials = [trial(None, "none"), trial(None, "skill"), trial(0.1, "skill"), trial(0.2, "undecided")]
    trust = trust_of(trials, (0.1,))
    assert trust.false_alarms == Claims(2, 1)
    assert trust.power == {0.1: Claims(1, 1)}


@pytest.mark.parametrize("text", ["1.5", "-0.1", "nan", "much", "0.1;0.2"])
def test_edges_that_are_no_coefficients_are_refused(text: str, tmp_path: Path) -> None:
    ended = eigen("--edges", text, "--out", str(tmp_path / "trials"))
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert "from 0 to 1" in ended.stderr
    assert not (tmp_path / "trials").exists()
    assert edges_in(" 0.2, 0 ,") == (0.2, 0.0)


def test_a_run_without_a_holdout_or_market_is_refused(tmp_path: Path) -> None:
    for setting in ("market.holdout_days=0", "task=gym:Pendulum-v1"):
        ended = eigen("--out", str(tmp_path), "--set", setting)
        assert ended.exit_code == 2, ended.output
        assert "Trials need a market with holdout days" in ended.stderr


def test_a_terminal_is_told_which_trial_is_made_and_how_long_the_others_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screens: list[str] = []
    displays: list[BarDisplay] = []

    def made(_: TrustTrials, edge: float | None, seed: int) -> Trial:
        report_progress("evaluate", 48, 48)
        output = io.StringIO()
        if displays:
            Console(file=output, width=100).print(displays[-1]._group())
        screens.append(output.getvalue())
        found = {"edge": edge, "seed": seed, "claim": "none", "matched_pvalue": 0.5, "trades": 3}
        return Trial.model_validate({**found, "excess": None, "excess_pvalue": None})

    def display(_: Console, steps: str) -> BarDisplay:
        displays.append(BarDisplay(Console(file=io.StringIO(), force_terminal=True), steps))
        return displays[-1]

    monkeypatch.setattr(TrustTrials, "_made", made)
    assert eigen("--edges", "", "--out", str(tmp_path)).exit_code == 0
    monkeypatch.setattr("flows.cli.display.display_on", display)
    assert eigen("--edges", "0.1,0.2", "--out", str(tmp_path)).exit_code == 0
    for number, screen in zip((2, 3), screens[1:], strict=True):
        assert f"trial {number} of 3" in screen
        assert f"{number - 1}/3" in screen
        assert "48/48" in screen
    assert "left" in screens[-1]


@pytest.mark.thorough
def test_finished_trials_are_kept_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--edges", "0.3", "--out", str(tmp_path))
    first = eigen(*arguments, "--json")
    assert first.exit_code == 0, first.output
    assert [line.partition(":")[0] for line in first.stderr.splitlines()] == [
        "trial 1/2  nothing to predict, seed 1",
        "trial 2/2  planted edge 0.3, seed 1",
    ]
    document = json.loads(first.stdout)
    assert list(document) == ["false_alarms", "power", "smallest_edge", "sentences"]
    assert list(document["false_alarms"]) == ["trials", "claimed", "share", "interval"]
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {"definition.json", "noise-1.json", "edge-0.3-1.json"}

    (tmp_path / "edge-0.3-1.json").unlink()
    assert json.loads(eigen(*arguments, "--json").stdout) == document
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files

    other = eigen(*arguments, "--set", "trading.cost_bps=9")
    assert other.exit_code == 2
    assert "were made with other settings or prices" in other.stderr

    # As an older version wrote it, with a setting that its learner did not read.
    definition = json.loads(files["definition.json"])
    definition["config"] |= {"format_version": 10, "learner": {**definition["config"]["learner"], "clip_range": 0.1}}
    (tmp_path / "definition.json").write_text(json.dumps(definition))
    monkeypatch.setattr(TrustTrials, "_made", None)
    again = eigen(*arguments)
    assert again.exit_code == 0, again.output
    assert "False alarms: skill was claimed on " in again.stdout

    (tmp_path / "noise-1.json").write_text("{}")
    assert "holds no trial: remove it" in eigen(*arguments).stderr
