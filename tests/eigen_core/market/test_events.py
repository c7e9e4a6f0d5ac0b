"""A price change stays if its row proves it; what no row proves needs a decision, and no choice removes a loss."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from market_cases import business_days, cleaned, read, small_config, write_csv

from eigen_core.common.errors import InputError
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.market.cleaning import CleanPrices
from eigen_core.market.report import DataReport
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.prices import Prices

DAYS = business_days(60)
DAY = f"{DAYS[30]:%Y-%m-%d}"
PRICES = ["open", "high", "low", "close"]


def joined_bars(symbol: str, seed: int, factors: dict[int, float] | None = None) -> pd.DataFrame:
    """Return bars that open at the last close; the price is multiplied by `factors` within days, by number."""
    generator = np.random.default_rng(seed)
    steps = 0.01 * generator.standard_normal(len(DAYS))
    for day, factor in (factors or {}).items():
        steps[day] = np.log(factor)
    close = 50.0 * np.exp(np.cumsum(steps))
    opened = np.concatenate([[50.0], close[:-1]])
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) / 1.002
    bars = {"open": opened, "high": high, "low": low, "close": close, "volume": generator.integers(1, 1_000, len(DAYS))}
    return pd.DataFrame({"date": DAYS, "symbol": symbol, **bars})


def gap(symbol: str, factor: float, day: int = 30, absent: int = 0, seed: int = 1) -> pd.DataFrame:
    """Return bars that are multiplied by a factor from a day on, after `absent` days without a row."""
    bars = joined_bars(symbol, seed)
    bars.loc[bars.index >= day, PRICES] *= factor
    return bars.drop(index=range(day - absent, day))


def write(folder: Path, *bars: pd.DataFrame) -> Path:
    return write_csv(folder / "prices.csv", pd.concat([*bars, joined_bars("OTHER", 99)]))


def closes(prices: CleanPrices, symbol: str) -> np.ndarray:
    return prices.close[:, prices.symbols.index(symbol)]


def advice(path: Path, *given: str) -> str:
    """Return the value of `market.events` in the command that the refusal prints."""
    with pytest.raises(InputError) as caught:
        read(path, *given)
    found = re.search(r"`(--set .*?)`, after a choice", str(caught.value))
    assert found is not None
    flag, setting = shlex.split(found[1])
    assert flag == "--set"
    return setting


@pytest.mark.parametrize("suspicious", ["refuse", "drop", "keep"])
@pytest.mark.parametrize(
    "factors", [{30: 0.4, 31: 0.01}, {59: 0.004}, {30: 3.4, 31: 2.8, 33: 0.3}, {30: 100.0, 31: 0.01}]
)
def test_a_change_that_its_row_proves_stays(tmp_path: Path, factors: dict[int, float], suspicious: str) -> None:
    bars = joined_bars("BANK", 1, factors)
    prices = read(write(tmp_path, bars), f"market.suspicious={suspicious}")
    np.testing.assert_allclose(closes(prices, "BANK"), bars["close"])
    _, report = cleaned(tmp_path / "prices.csv")
    assert {row.kind for row in report.suspicious} == {"proved"}
    with pytest.raises(InputError, match=r"'BANK .* ends', but the data report lists no unproved change on this day"):
        read(tmp_path / "prices.csv", f"market.events=BANK {DAYS[next(iter(factors))]:%Y-%m-%d} ends")


@pytest.mark.parametrize(
    ("bars", "suggested"),
    [
        (gap("BANK", 0.0042, absent=12), [f"BANK {DAY} keep"]),
        (gap("BANK", 7_603.0, absent=15), [f"BANK {DAY} renamed"]),
        (gap("A, 'B'", 0.05), [f"A, 'B' {DAY} split 20:1"]),
        (gap("BANK", 0.004, day=59), [f"BANK {DAYS[59]:%Y-%m-%d} keep"]),
        (gap("BANK", 50.0, day=59), [f"BANK {DAYS[59]:%Y-%m-%d} ends"]),
        (
            pd.concat([gap("ONE", 0.5), gap("T WO", 0.001, absent=3)]),
            [f"ONE {DAY} split 2:1", f"T WO {DAY} keep"],
        ),
    ],
)
@pytest.mark.parametrize("suspicious", ["refuse", "drop"])
def test_a_change_between_bars_needs_a_decision_which_the_refusal_prints(
    tmp_path: Path, bars: pd.DataFrame, suggested: list[str], suspicious: str
) -> None:
    path = write(tmp_path, bars)
    given = f"market.suspicious={suspicious}"
    setting = advice(path, given)
    assert load_config(None, [setting]).market.events == tuple(suggested)
    assert "OTHER" in read(path, given, setting).symbols
    # Decisions that were given before stay in the command.
    assert advice(path, given, f"market.events=OTHER {DAY} keep") == setting.replace("[", f'["OTHER {DAY} keep", ')
    # What the row of a loss shows is read as it is.
    if suggested == [f"BANK {DAY} keep"]:
        np.testing.assert_allclose(closes(read(path, setting), "BANK")[30:], bars["close"][18:])


def report_of(path: Path, event: str) -> DataReport:
    return build_panel(small_config(path, events=[event]), path.parent / "cache")[1]


def test_decisions_change_the_rows_as_they_say(tmp_path: Path) -> None:
    bars = gap("BANK", 0.05)
    path = write(tmp_path, bars)
    split = read(path, f"market.events=BANK {DAY} split 20:1")
    np.testing.assert_allclose(closes(split, "BANK"), bars["close"] * np.where(bars.index < 30, 0.05, 1.0))
    column = split.symbols.index("BANK")
    np.testing.assert_allclose(split.volume[:, column], bars["volume"] * np.where(bars.index < 30, 20.0, 1.0))
    ends = closes(read(path, f"market.events=BANK {DAY} ends"), "BANK")
    np.testing.assert_array_equal(np.isnan(ends), np.arange(60) >= 30)
    renamed = read(path, f"market.events=BANK {DAY} renamed")
    assert renamed.symbols == ("BANK", "OTHER", f"BANK_before_{DAY}")
    np.testing.assert_array_equal(np.isnan(closes(renamed, "BANK")), np.arange(60) < 30)
    np.testing.assert_array_equal(np.isnan(renamed.close[:, 2]), np.arange(60) >= 30)
    words = f"Decided by market.events: BANK {DAY} renamed."
    assert words in report_of(path, f"BANK {DAY} renamed").lines()
    # The same files with other decisions are another panel.
    assert f"Decided by market.events: BANK {DAY} keep." in report_of(path, f"BANK {DAY} keep").lines()
    reverse = write(tmp_path, gap("BANK", 20.0))
    np.testing.assert_allclose(
        closes(read(reverse, f"market.events=BANK {DAY} split 1:20"), "BANK")[:30], bars["close"][:30] * 20
    )


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (f"NONE {DAY} keep", "has no row of this symbol and day"),
        ("BANK 1999-01-04 keep", "has no row of this symbol and day"),
        (f"BANK {DAY} split 2:1", "the price changes by a factor of 0.05 then, and by 0.5 in the split"),
        (f"BANK {DAY} split 1:20", "and by 20 in the split"),
        (f"BANK {DAY} drop", "no single one after which the price comes back"),
        (f"BANK {DAY}", "is no event: write a symbol, a day and keep"),
        ("BANK 2020-02-30 keep", "is no event"),
        (f"BANK {DAY} split 1:0", "is no event"),
        (f"BANK {DAY} split 3:3", "is no event"),
        (f"BANK {DAY} keep,BANK {DAY} ends", f"decides twice about BANK {DAY}"),
    ],
)
def test_decisions_that_cannot_be_are_refused(tmp_path: Path, event: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(write(tmp_path, gap("BANK", 0.05)), f"market.events={event}")


@pytest.mark.parametrize("decision", ["drop", "ends", "renamed", "split 10:7"])
def test_no_decision_removes_a_small_fall_that_its_row_proves(tmp_path: Path, decision: str) -> None:
    path = write(tmp_path, joined_bars("BANK", 1, {30: 0.7}))
    with pytest.raises(InputError, match=r"no unproved change|no single one"):
        read(path, f"market.events=BANK {DAY} {decision}")


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_decision_about_no_row_is_refused_whether_the_panel_is_cached_or_not(tmp_path: Path, cache: str) -> None:
    path = write(tmp_path, joined_bars("BANK", 1))
    if cache == "warm":
        build_panel(small_config(path), tmp_path / "cache")
    with pytest.raises(InputError, match="has no row of this symbol and day"):
        build_panel(small_config(path, events=[f"BANK {DAYS[0]:%Y}-01-04 keep"]), tmp_path / "cache")


@pytest.mark.parametrize("columns", [["open", "close"], ["open", "close", "volume"], PRICES])
def test_an_open_at_the_last_close_proves_nothing_without_volume_and_range(tmp_path: Path, columns: list[str]) -> None:
    bars = pd.concat([joined_bars("BANK", 1, {30: 0.004}), joined_bars("OTHER", 99)])
    path = write_csv(tmp_path / "p.csv", bars[["date", "symbol", *columns]])
    if len(columns) > 2:
        np.testing.assert_allclose(closes(read(path), "BANK"), bars["close"][:60])
    else:
        assert load_config(None, [advice(path)]).market.events == (f"BANK {DAY} keep",)


def equal_weight(path: Path, folder: Path, *given: str) -> float:
    """Return the gain of equal weight in the last 30 days."""
    config = load_config(
        None, [f"market.data={path}", *given, "market.window=5", "market.validation=8", "market.holdout=30",
               "trading.trading_bars=3", "trading.settlement_bars=2", "trading.holding_bars=2",
               "network.linear_scales=[1]"]
    )  # fmt: skip
    panel, _ = build_panel(config, folder / "cache")
    prices = Prices.of_panel(panel, torch.device("cpu"))
    return float(baseline_curves(prices, panel.dates, config, panel.splits.holdout)["equal_weight"].equity[-1])


@pytest.mark.parametrize("last", [0.0002, 0.0])
@pytest.mark.parametrize("choice", ["keep", "event"])
def test_a_total_loss_on_the_last_day_is_booked(tmp_path: Path, last: float, choice: str) -> None:
    bars = [joined_bars(f"S{number}", number) for number in range(5)]
    whole = write_csv(tmp_path / "whole.csv", pd.concat(bars))
    bars[2].loc[59, ["low", "close"]] = last
    path, day = write_csv(tmp_path / "p.csv", pd.concat(bars)), f"{DAYS[59]:%Y-%m-%d}"
    given = "market.suspicious=keep" if choice == "keep" else f"market.events=S2 {day} keep"
    assert closes(read(path, given), "S2")[-1] == pytest.approx(max(last, 1e-12))
    if not last:
        assert advice(path) == advice(path, "market.suspicious=drop") == f'market.events=["S2 {day} keep"]'
        # A panel that was built of what is kept is refused as well.
        build_panel(small_config(path, suspicious="keep"), tmp_path / "cache")
        with pytest.raises(InputError, match=f"S2 {day}"):
            build_panel(small_config(path), tmp_path / "cache")
    # A fifth of the money is lost, but for what the stock had gained.
    lost = equal_weight(whole, tmp_path) - equal_weight(path, tmp_path, given)
    share = 0.2 * bars[2]["close"][58] / bars[2]["open"][30]
    assert lost / load_config(None).account.capital == pytest.approx(share, rel=0.03)


def test_decisions_after_the_last_date_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, gap("BANK", 0.05))
    until = f"market.last_date={DAYS[29]:%Y-%m-%d}"
    later = read(path, until, f"market.events=BANK {DAY} split 20:1")
    np.testing.assert_array_equal(later.close, read(path, until).close)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_cleaning_and_no_decision_removes_a_fall_that_its_row_shows(tmp_path: Path, data: st.DataObject) -> None:
    """True prices fall, and some rise, within days; wrong rows are added. Equal weight is never above its true gain."""
    days, kinds = st.integers(5, 54), st.sampled_from(["spike", "wick", "twice", "zero", "close"])
    parts, true = [], []
    falls: list[tuple[str, int, float]] = []
    wrong_days: set[tuple[str, int]] = set()
    for number in range(3):
        factors = data.draw(
            st.dictionaries(st.integers(5, 59), st.sampled_from([0.001, 0.1, 0.3, 0.5, 0.7, 3.0]), max_size=4)
        )
        bars = joined_bars(f"S{number}", number, factors)
        if data.draw(st.booleans()):
            bars = bars.drop(columns="volume" if number else ["high", "low"])
        true.append(bars["close"].iloc[-1] / bars["close"].iloc[0])
        wrong = data.draw(st.dictionaries(days, kinds, max_size=2))
        wrong_days |= {(f"S{number}", day) for day in wrong}
        falls += [(f"S{number}", day, bars["close"][day]) for day in set(factors) - set(wrong) if factors[day] < 1.0]
        again = bars.loc[[day for day, kind in wrong.items() if kind == "twice"]].assign(close=1.0, low=0.9)
        for day, kind in wrong.items():
            columns = {"spike": PRICES, "wick": ["high"], "close": ["close"]}.get(kind, [])
            bars.loc[day, list(bars.columns.intersection(columns))] *= 100.0
            bars.loc[day, list(bars.columns.intersection(PRICES if kind == "zero" else []))] = 0.0
        parts += [bars, again]
    path = write_csv(tmp_path / "prices.csv", pd.concat(parts))
    # Wrong rows may be before a fall: what follows them shows nothing.
    proved = [(symbol, day) for symbol, day, _ in falls if (symbol, day - 1) not in wrong_days]
    if proved:
        symbol, day = data.draw(st.sampled_from(proved))
        decision = data.draw(st.sampled_from(["drop", "ends", "renamed", "split 10:7", "split 2:1", "split 10:1"]))
        with pytest.raises(InputError, match=r"no unproved change|no single one after which"):
            read(path, "market.suspicious=keep", f"market.events={symbol} {DAYS[day]:%Y-%m-%d} {decision}")
    for choice in ("refuse", "drop", "keep"):
        try:
            prices = read(path, f"market.suspicious={choice}")
        except InputError:
            continue
        last = [closes(prices, f"S{number}")[~np.isnan(closes(prices, f"S{number}"))][-1] for number in range(3)]
        first = [closes(prices, f"S{number}")[0] for number in range(3)]
        assert np.divide(last, first).mean() <= np.mean(true) * (1.0 + 1e-9)
        for symbol, day, close in falls:
            assert closes(prices, symbol)[
                list(prices.days.astype(str)).index(f"{DAYS[day]:%Y-%m-%d}")
            ] == pytest.approx(close)


@pytest.mark.parametrize("closes_only", [False, True])
def test_a_volume_of_zero_is_no_trade_only_if_no_price_moves(tmp_path: Path, closes_only: bool) -> None:
    bars = joined_bars("AAA", 1)
    bars.loc[10:39, "volume"] = 0
    bars.loc[20:29, PRICES] = bars["close"][19]
    bars.loc[30, "open"] = bars["close"][19]
    bars.loc[50:59, "volume"] = 0
    bars.loc[50:59, PRICES] = bars["close"][49]
    columns = ["date", "symbol", "close", "volume"] if closes_only else list(bars)
    path = write_csv(tmp_path / "prices.csv", pd.concat([bars, joined_bars("BBB", 2)])[columns])
    prices, report = cleaned(path)
    no_trade = np.isin(np.arange(60), [*range(20, 30), *range(50, 60)])
    np.testing.assert_array_equal(prices.traded[:, 0], ~no_trade)
    np.testing.assert_array_equal(
        np.isnan(prices.volume[:, 0]), (np.arange(60) >= 10) & (np.arange(60) < 40) & ~no_trade
    )
    panel, _ = build_panel(small_config(path), tmp_path / "cache")
    np.testing.assert_array_equal(np.isnan(panel.close[:, 0]), no_trade)
    # Until the first volume above zero, nothing shows that zero means no trade.
    bars.loc[:29, "volume"] = 0
    late = cleaned(write_csv(tmp_path / "late.csv", pd.concat([bars, joined_bars("BBB", 2)])[columns]))[0]
    np.testing.assert_array_equal(late.traded[:, 0], np.arange(60) < 50)
    assert report.suspended_days == 20
    # It ends with its last trade, although the file repeats its close.
    assert report.symbols[0].last_day == f"{DAYS[49]:%Y-%m-%d}"
    said = "Volumes of zero on days on which prices move, as a share of the symbol's days: AAA (33.3 %). "
    assert any(line.startswith(said) for line in report.lines())
