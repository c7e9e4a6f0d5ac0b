"""A run on 5-minute bars: trained, resumed, judged, reported, and its orders from bar to bar."""

from pathlib import Path

import pandas as pd
import pytest
from cli_cases import document, eigen
from flow_cases import small_settings

BARS = 3 * 288


def write_coins(folder: Path, rows: int) -> None:
    """Write the first bars of three coins in freqtrade's layout."""
    folder.mkdir(exist_ok=True)
    dates = pd.date_range("2024-03-04", periods=BARS, freq="5min", tz="UTC")
    for seed, coin in enumerate(("AAA", "BBB", "CCC")):
        generator = pd.Series(range(BARS)).sample(frac=1.0, random_state=seed)
        close = 50.0 * (1.0 + 0.002 * (generator.to_numpy() / BARS - 0.5)).cumprod()
        bars = pd.DataFrame(
            {"date": dates, "open": close, "high": close * 1.001, "low": close * 0.999, "close": close, "volume": 5.0}
        )
        bars.iloc[:rows].to_feather(folder / f"{coin}_USDT-5m.feather")


@pytest.mark.thorough
def test_a_run_on_bars_from_training_to_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_coins(tmp_path / "coins", BARS - 10)
    settings = small_settings(market={"window": 20, "validation": 60, "holdout": 60})
    run = ["--run", "coins", "--store", "store"]
    trained = eigen("train", *run, "--data", "coins", *settings, "--generations", "1", code=0).output
    assert "Bars of 5m" in trained
    assert "A year has 105,120 " in trained
    eigen("resume", "coins", "--store", "store", "--generations", "2", code=0)
    assert document("show", "coins", "--store", "store")["generation"] == 2
    judged = document("backtest", "coins", "--store", "store", "--slice", "2024-03-06:2024-03-06")
    assert (judged["first"], judged["last"]) == ("2024-03-06T00:05:00", "2024-03-06T23:10:00")
    eigen("report", "coins", "--store", "store", code=0)
    assert "2024-03-06" in Path("coins-report.html").read_text(encoding="utf-8")
    found = []
    for rows, last in ((BARS - 10, "23:10"), (BARS - 9, "23:15"), (BARS, "00:00")):
        write_coins(tmp_path / "coins", rows)
        acted = document("act", "coins", "--store", "store", "--data", "coins")
        assert acted["date"].endswith(f"{last}:00")
        found.append(acted["reconciliation"])
    assert [one["agreeing"] for one in found] == [0, 1, 2]
    assert [day["missed"] for day in found[2]["differences"]] == [True] * 8
    assert eigen("verify", "coins", "--store", "store", code=0)


@pytest.mark.thorough
def test_the_preset_of_the_replaced_system_trades_every_coin_at_every_bar_and_pays_what_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_coins(tmp_path / "coins", BARS)
    small = ["trading.trading_bars=60", "network.head_width=8", "evaluation.slices=1", "evaluation.lowest=1"]
    small += ["learner.epochs=1", "market.validation=150", "market.holdout=150", "threads=1"]
    given = [word for setting in small for word in ("--set", setting)]
    run = ["--run", "dear", "--preset", "crypto-classic", "--data", "coins", "--generations", "1"]
    eigen("train", *run, *given, code=0)
    judged = document("backtest", "dear")
    # The first bar's decision is filled at the second.
    assert judged["trades"] == 3 * 149
    traded = judged["turnover"] * 150 / judged["periods_per_year"] * judged["capital"]
    assert judged["costs"] == pytest.approx(0.003 * traded, rel=0.01)
