"""Tables of instruments: files and texts, what is refused, and runs that keep the rows with which they began."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flow_cases import NoDrawing, small_flow_config
from hypothesis import given, strategies as st
from trading_cases import CPU

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.instruments import COLUMNS, Instrument, instruments_of
from eigen_core.config.loading import load_config
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.judging.backtest import SpanResult, backtest_class
from eigen_core.market import build_panel
from eigen_core.run import train_run
from eigen_core.runs.handle import Run
from eigen_core.task import open_data
from eigen_core.trading.order_limits import liquidity_of

TABLE = """symbol,cost_bps,slippage_bps,minimum_fee,lot_size,minimum_size,minimum_notional,volume_unit
AAPL,5,,1.5,,,,
BRK B,,2.5,,,,,shares

BTC/USDT,10,1,,0.001,0.002,10,money
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_becomes_the_setting(tmp_path: Path) -> None:
    path = written(tmp_path / "Table.CSV", TABLE)
    config = load_config(None, [f"market.instruments={path}"])
    assert config.market.instruments[1] == "BRK B slippage_bps=2.5 volume_unit=shares"
    symbols = ("BTC/USDT", "AAPL", "BRK B")
    assert instruments_of(config.market.instruments, symbols) == (
        Instrument("BTC/USDT", 10.0, 1.0, 0.0, 0.001, 0.002, 10.0, "money"),
        Instrument("AAPL", 5.0, None, 1.5),
        Instrument("BRK B", None, 2.5),
    )
    assert config_from_stored(stored_values(config)) == config
    texts = ",".join(config.market.instruments)
    assert load_config(None, [f"market.instruments={texts}"]) == config
    assert instruments_of((), symbols) == ()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("name,cost_bps\nAAPL,5\n", "columns are 'name', 'cost_bps', not symbol"),
        ("cost_bps\n5\n", "columns are 'cost_bps'"),
        ("symbol,cost_bps,cost_bps\nAAPL,5,5\n", "each once"),
        ("symbol,cost_bps\nAAPL,5,6\n", "line 2 has 3 cells"),
        ("symbol,cost_bps\nAAPL,-5\n", "cost_bps of 'AAPL' is '-5': give a number from 0"),
        ("symbol,cost_bps\nAAPL,nan\n", "cost_bps of 'AAPL' is 'nan'"),
        ("symbol,lot_size\nAAPL,1e10\n", "lot_size of 'AAPL' is '1e10'"),
        ("symbol,volume_unit\nAAPL,lots\n", "volume_unit of 'AAPL' is 'lots'"),
        ("symbol,cost_bps\nAAPL,5\nAAPL,6\n", "has 'AAPL' twice"),
        ("symbol,cost_bps\n,5\n", "names no symbol"),
        ('symbol\n"A\nB"\n', "cannot be used"),
        ('symbol,cost_bps\n"AAPL,5\n', "no table of instruments"),
        ("", "no table of instruments"),
        ("symbol\n" + "A" * (1 << 20), "has more than 1,048,576 bytes"),
        ("symbol\n" + "".join(f"S{row}\n" for row in range(10_001)), "market.instruments"),
    ],
)
def test_a_wrong_table_is_refused_in_a_sentence(tmp_path: Path, content: str, part: str) -> None:
    path = written(tmp_path / "table.csv", content)
    with pytest.raises(InputError) as refused:
        load_config(None, [f"market.instruments={path}"])
    assert part in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, Path.exists])
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "table.csv")
    with pytest.raises(InputError, match=r"table\.csv"):
        load_config(None, [f"market.instruments={tmp_path / 'table.csv'}"])


def test_a_store_names_no_file(tmp_path: Path) -> None:
    path = written(tmp_path / "table.csv", TABLE)
    kept = config_from_stored({**stored_values(Config()), "market": {"instruments": [str(path)]}})
    with pytest.raises(InputError, match=r"market\.instruments lacks AAPL"):
        build_panel(kept, tmp_path / "cache")


@given(st.text(max_size=40))
def test_a_text_is_an_instrument_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert Instrument.parse(text).symbol in text


def played(config: Config) -> SpanResult:
    backtest = backtest_class(config)(config, build_panel(config)[0], CPU)
    return backtest.play_ridge(backtest.panel.splits.validation, draws=40)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_equal_rates_of_all_symbols_change_no_bit(tmp_path: Path, task: str) -> None:
    trading = {"cost_bps": 11.0, "slippage_bps": 3.0}
    rules: dict[str, Any] = {"task": task, "account": {"shares": "whole"}, "trading": trading}
    single = small_flow_config(tmp_path, **rules)
    symbols = build_panel(single)[0].symbols
    rows = [f"{symbol} cost_bps=11 slippage_bps=3" for symbol in symbols]
    rules["trading"] = {"cost_bps": 99.0, "slippage_bps": 0.0}
    table = small_flow_config(tmp_path, **rules, market={"instruments": rows})
    one, other = played(single), played(table)
    np.testing.assert_array_equal(one.curve.equity, other.curve.equity)
    np.testing.assert_array_equal(one.matched.total_returns, other.matched.total_returns)
    assert (one.excess, one.alpha) == (other.excess, other.alpha)
    for name, curve in one.baselines.items():
        np.testing.assert_array_equal(curve.equity, other.baselines[name].equity, err_msg=name)
    # Twice the costs of one symbol that is traded do.
    traded = symbols.index(one.trades["symbol"][0])
    rows[traded] = f"{symbols[traded]} cost_bps=22 slippage_bps=6"
    dearer = played(small_flow_config(tmp_path, **rules, market={"instruments": rows}))
    assert float(dearer.curve.costs[:5].sum()) > 1.01 * float(one.curve.costs[:5].sum())


@pytest.mark.thorough
def test_a_run_keeps_its_rows_whatever_becomes_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.run.Drawing", NoDrawing)
    symbols = open_data(small_flow_config(tmp_path)).content.symbols
    rows = "".join(f"{symbol},{place}\n" for place, symbol in enumerate(symbols))
    path = written(tmp_path / "table.csv", f"symbol,cost_bps\n{rows}")
    instruments = load_config(None, [f"market.instruments={path}"]).market.instruments

    def weights_after(name: str, *generations: int) -> str:
        for number in generations:
            begun = Run(small_flow_config(tmp_path).checkpoint, name)
            given = {"market": {"instruments": instruments}, "generations": number}
            config = begun.config_to_resume() if begun.exists else small_flow_config(tmp_path, **given)
            train_run(config.model_copy(update={"generations": number}), begun)
            path.unlink(missing_ok=True)
        return Run(small_flow_config(tmp_path).checkpoint, name).status().history[-1].weights_sha256

    whole = weights_after("whole", 2)
    assert weights_after("continued", 1, 2) == whole
    changed = small_flow_config(tmp_path, market={"instruments": [*instruments[:-1], f"{symbols[-1]} cost_bps=0"]})
    with pytest.raises(InputError, match=r"other settings: market\.instruments differs"):
        Run(changed.checkpoint, "whole").require_same_settings(changed)


def test_a_traded_symbol_without_a_row_is_named(tmp_path: Path) -> None:
    symbols = build_panel(small_flow_config(tmp_path))[0].symbols
    rows = [symbol for symbol in symbols if symbol not in symbols[4:6]]
    with pytest.raises(InputError, match=rf"lacks {symbols[4]}, {symbols[5]}, which can be traded"):
        build_panel(small_flow_config(tmp_path, market={"instruments": rows}))
    # Rows of other symbols, and of those that are only observed, are not needed.
    context = {"context": list(symbols[4:6]), "instruments": [*rows, "OTHER lot_size=1"]}
    assert len(build_panel(small_flow_config(tmp_path, market=context))[0].instruments) == len(symbols) - 2
    assert set(COLUMNS) == set(vars(Instrument("A"))) - {"symbol"}


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_a_larger_account_is_filled_less_and_at_worse_prices(tmp_path: Path, task: str) -> None:
    def found(**account: float) -> SpanResult:
        return played(small_flow_config(tmp_path, task=task, market={"data": "us5"}, account=account))

    free, limited = found(), found(participation=0.01, impact=1.0, capital=1e6)
    assert free.capacity == {}
    assert [*limited.capacity] == [1, 10, 100]
    assert limited.capacity[1] == pytest.approx(limited.metrics.total_return)
    tenth, hundredth = found(participation=0.01, impact=1.0, capital=1e7), found(participation=0.01, capital=1e9)
    assert tenth.metrics.total_return == pytest.approx(limited.capacity[10])
    # A share of the volume is a smaller share of a larger account.
    shares = [float(one.curve.exposure.mean()) for one in (free, tenth, hundredth)]
    assert shares[0] > shares[1] > 1.2 * shares[2] > 0.0, shares
    rates = [one.costs.sum() / one.traded.sum() for one in (free.curve, found(impact=1.0, capital=1e9).curve)]
    assert rates[1] > 5.0 * rates[0]


def test_volumes_count_in_their_unit_and_must_be_there(tmp_path: Path) -> None:
    panel = build_panel(small_flow_config(tmp_path, market={"data": "us5"}))[0]
    assert panel.volume is not None
    rows = [f"{symbol} volume_unit=money" for symbol in panel.symbols]
    money = build_panel(small_flow_config(tmp_path, market={"data": "us5", "instruments": rows}))[0]
    shares, _ = liquidity_of(panel)
    of_money, volatility = liquidity_of(money)
    last = panel.volume[-20:], panel.close[-20:]
    np.testing.assert_allclose(shares[-1], last[0].mean(axis=0))
    np.testing.assert_allclose(of_money[-1], (last[0] / last[1]).mean(axis=0))
    returns = last[1][1:] / last[1][:-1] - 1.0
    np.testing.assert_allclose(volatility[-1], returns.std(axis=0, ddof=1))
    # Later bars change nothing.
    cut = {name: getattr(panel, name)[:1_000] for name in ("close", "volume")}
    np.testing.assert_array_equal(liquidity_of(replace(panel, **cut))[0], shares[:1_000])
    with pytest.raises(InputError, match="the prices have none"):
        played(small_flow_config(tmp_path, account={"participation": 0.1}))
