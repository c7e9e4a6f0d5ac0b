"""The rules of the baselines on prices whose order is known."""

import numpy as np
import pytest
from trading_cases import panel_of, prices_of

from eigen_core.config import Config, merge
from eigen_core.trading.baselines import baseline_curves

DAYS = 420
SPAN = range(300, DAYS)
FREE = {
    "trading": {"cost_bps": 0.0, "slippage_bps": 0.0, "holding_days": 2},
    "account": {"periods_per_year": 252},
}


def steady_growth(rates: list[float]) -> np.ndarray:
    """Closes of assets that grow at steady rates, a day."""
    closes: np.ndarray = 100.0 * np.exp(np.outer(np.arange(DAYS), rates))
    return closes


def test_each_rule_holds_the_assets_that_it_names() -> None:
    rates = [-0.002, -0.001, 0.0, 0.001, 0.002, 0.003]
    closes = steady_growth(rates)
    panel = panel_of(closes, closes, closes)
    curves = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)
    assert set(curves) == {"cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic"}
    for curve in curves.values():
        np.testing.assert_array_equal(curve.dates, panel.dates[SPAN.start : SPAN.stop])
    total = {name: curve.equity[-1] / curve.capital for name, curve in curves.items()}
    held = len(SPAN) - 2  # bought at the second day's open, which is its close here
    assert total["cash"] == 1.0
    assert total["equal_weight"] == pytest.approx(np.mean(np.exp(held * np.array(rates))))
    assert total["rebalanced"] == pytest.approx(np.exp(rates).mean() ** held, rel=1e-4)
    assert np.exp(held * 0.002) < total["momentum"] < np.exp(held * 0.003)
    assert np.exp(held * -0.002) < total["reversal"] < np.exp(held * -0.001)
    # The two best are held by turns, each from the close after its decision to the next: one day of two.
    assert total["classic"] == pytest.approx(np.exp(held * 0.0025 / 2), rel=0.01)
    # Two a day: the two best, then the two after them, by turns.
    two = Config(**merge(FREE, {"trading": {"purchases_per_day": 2}}))
    classic = baseline_curves(prices_of(panel), panel.dates, two, SPAN)["classic"]
    assert classic.equity[-1] / classic.capital == pytest.approx(np.exp(held * 0.0015 / 2), rel=0.01)
    traded_days = np.flatnonzero(curves["momentum"].traded > 1.0)
    assert set(traded_days) <= {day + 1 for day in range(0, len(SPAN), 21)}


def test_a_rule_without_the_prices_that_it_needs_stays_in_cash() -> None:
    closes = steady_growth([0.001, 0.002, 0.003])
    panel = panel_of(closes, closes, closes)
    early = range(40, 100)
    curves = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), early)
    assert (curves["momentum"].equity == curves["momentum"].capital).all()
    assert curves["reversal"].equity[-1] > curves["reversal"].capital


def test_an_asset_that_starts_late_is_bought_once_it_can_be() -> None:
    closes = steady_growth([0.0, 0.01])
    closes[: SPAN.start + 10, 1] = np.nan
    panel = panel_of(closes, closes, closes)
    curves = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)
    assert curves["equal_weight"].equity[-1] == pytest.approx(curves["equal_weight"].capital)
    assert curves["rebalanced"].equity[11] == pytest.approx(curves["rebalanced"].capital)
    assert curves["rebalanced"].equity[12] > curves["rebalanced"].capital


def test_equal_weight_waits_for_the_first_fill_of_each_asset() -> None:
    """One is halted on the first days, one trades on them but not on the day of its fill, one has ended before."""
    closes = steady_growth([0.0, 0.002, 0.004, 0.004])
    first = SPAN.start
    closes[first - 3 : first + 8, 1] = np.nan
    closes[first + 1, 2] = np.nan
    closes[first - 90 :, 3] = np.nan
    panel = panel_of(closes, closes, closes)
    curve = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)["equal_weight"]
    days = len(SPAN)
    assert set(np.flatnonzero(curve.traded)) == {1, 3, 9}
    np.testing.assert_allclose(curve.traded[[1, 3]], curve.capital / 3.0)
    assert curve.traded[9] == pytest.approx(curve.capital / 3.0)
    grown = np.exp(0.002 * (days - 1 - 9)), np.exp(0.004 * (days - 1 - 3))
    assert curve.equity[-1] / curve.capital == pytest.approx((1.0 + sum(grown)) / 3.0, rel=0.01)
    # Where nothing trades on the first days, all wait.
    closes[first : first + 5] = np.nan
    panel = panel_of(closes, closes, closes)
    waited = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), SPAN)["equal_weight"]
    assert set(np.flatnonzero(waited.traded)) == {6, 9}
    assert waited.equity[-1] > 1.2 * waited.capital


def test_a_year_of_momentum_is_that_of_the_market() -> None:
    closes = steady_growth([0.001, 0.002, 0.003])
    panel = panel_of(closes, closes, closes)  # on all days of the week
    coins = Config.model_validate({**FREE, "account": {}})
    for first, bought in ((350, False), (370, True)):
        span = range(first, first + 14)
        momentum = baseline_curves(prices_of(panel), panel.dates, coins, span)["momentum"]
        assert bool(momentum.traded.any()) is bought
