"""Days on which a symbol has prices and is not traded."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from science_cases import small_config

from eigen_core.market import Panel, build_panel
from eigen_core.market.report import DataReport
from eigen_core.trading import Prices

DAYS = 200


def prices(symbol: str, seed: int, volume: float) -> pd.DataFrame:
    close = 40.0 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0.0, 0.02, DAYS)))
    columns = dict.fromkeys(("open", "high", "low", "close"), close)
    return pd.DataFrame(
        {"date": pd.bdate_range("2010-01-04", periods=DAYS), "symbol": symbol, **columns, "volume": volume}
    )


def panel_of(folder: Path, *tables: pd.DataFrame) -> tuple[Panel, DataReport]:
    path = folder / "prices.csv"
    pd.concat(tables).to_csv(path, index=False)
    return build_panel(small_config(market={"data": str(path)}), folder / "cache")


def test_nothing_is_filled_on_a_day_with_a_volume_of_zero(tmp_path: Path) -> None:
    """A vendor repeats the last close, with a volume of zero and other prices of zero, while trading is suspended."""
    suspended = prices("AAA", 1, 1_000.0)
    days = [0, 60, 61, 62, 100]
    suspended.loc[days, ["open", "high", "low", "volume"]] = 0.0
    panel, report = panel_of(tmp_path, suspended, prices("BBB", 2, 1_000.0))
    config = small_config()
    fills = Prices.of_panel(panel, torch.device("cpu")).fills(config.trading)
    for day in days:
        assert fills.entry[day, 0].isnan()
        assert fills.entry[max(day - 1, 0), 0].isnan()
        assert not fills.entry[day, 1].isnan()
    # Decided on day 56, with the purchase of day 57; due on day 61.
    assert (56 + int(fills.exit_offset[56, 0]), float(fills.exit[56, 0])) == (63, panel.open[63, 0])
    assert panel.valid[:, 0].all()
    assert report.suspended_days == len(days)
    assert any("5 days of prices with a volume of zero" in line for line in report.lines())


def test_a_symbol_without_any_volume_is_traded(tmp_path: Path) -> None:
    """As a currency among stocks: its volume is zero on all days."""
    panel, report = panel_of(tmp_path, prices("EURUSD", 1, 0.0), prices("BBB", 2, 1_000.0))
    assert not np.isnan(panel.close).any()
    assert report.suspended_days == 0


def test_the_data_report_says_what_becomes_of_a_symbol_that_ends(tmp_path: Path) -> None:
    ends = prices("AAA", 1, 1_000.0).iloc[:150]
    _, report = panel_of(tmp_path, ends, prices("BBB", 2, 1_000.0))
    trading = small_config(trading={"delisting_loss": 0.45, "delisting_days": 33}).trading
    sentence = next(line for line in report.lines(trading) if "delisting_loss" in line)
    assert sentence.startswith("1 tradable symbol ")
    assert "33 (trading.delisting_days)" in sentence
    assert "45% (trading.delisting_loss)" in sentence
    _, whole = panel_of(tmp_path, prices("AAA", 1, 1_000.0), prices("BBB", 2, 1_000.0))
    assert not any("delisting" in line for line in whole.lines(trading))
