"""What trades gain beyond the market, and their alpha."""

import numpy as np
import pytest
from test_matched import CONFIG, agents_trades, due_days, trades_of_one_asset

from eigen_core.trading import market_gains
from eigen_core.trading.excess import alpha_of, alpha_of_days, excess_of_trades
from eigen_core.trading.trades import DecidedTrades


def plain_alpha(excess: np.ndarray, market: np.ndarray, day: np.ndarray, lags: int) -> tuple[float, float]:
    """Least squares, and the covariance as a sum over all pairs of observations."""
    inputs = np.array([[1.0, one] for one in market])
    fitted, *_ = np.linalg.lstsq(inputs, excess, rcond=None)
    moments = inputs * (excess - inputs @ fitted)[:, None]
    middle = np.zeros((2, 2))
    for first in range(len(day)):
        for second in range(len(day)):
            apart = abs(int(day[first]) - int(day[second]))
            middle += max(0.0, 1.0 - apart / (lags + 1)) * np.outer(moments[first], moments[second])
    outer = np.linalg.inv(inputs.T @ inputs)
    return float(fitted[0]), float((outer @ middle @ outer)[0, 0] ** 0.5)


def test_alpha_equals_the_plain_sum_over_all_pairs() -> None:
    random = np.random.default_rng(1)
    day = np.sort(random.integers(0, 90, 70))
    market, excess = random.normal(0.01, 0.03, 70), random.normal(0.002, 0.02, 70)
    found = alpha_of(excess, market, day, 6)
    assert found is not None
    mean, error = plain_alpha(excess, market, day, 6)
    assert (found.mean, found.standard_error) == pytest.approx((100.0 * mean, 100.0 * error))
    assert (found.trades, found.per) == (70, "trade")


def test_alpha_leaves_out_what_the_market_explains() -> None:
    random = np.random.default_rng(2)
    market, own = random.normal(0.001, 0.01, 600), random.normal(0.0, 0.002, 600)
    risky = alpha_of_days(1.5 * market + own - own.mean(), market, 252.0)
    skilled = alpha_of_days(1.5 * market + own - own.mean() + 0.001, market, 252.0)
    assert risky is not None
    assert skilled is not None
    assert abs(risky.mean) < 2.0 * risky.standard_error
    assert skilled.mean - risky.mean == pytest.approx(25.2)
    assert skilled.mean > 5.0 * skilled.standard_error
    assert skilled.per == "year"


def test_without_a_market_that_moves_or_with_few_trades_there_is_no_alpha() -> None:
    day = np.arange(9)
    assert alpha_of(np.ones(9), np.arange(9.0), day, 1) is None
    assert alpha_of_days(np.random.default_rng(3).normal(0.0, 0.01, 50), np.full(50, 0.01), 252.0) is None


def test_excess_of_trades_is_that_of_each_trade() -> None:
    trades, known = agents_trades(1)
    excess, alpha = excess_of_trades(trades, known, CONFIG.trading)
    entries, market = known.fills(CONFIG.trading).entry.numpy(), market_gains(known, CONFIG.trading).numpy()
    cost = CONFIG.trading.cost_bps / 1e4
    gains = []
    due = due_days(trades, known, CONFIG.trading)
    for day in np.flatnonzero(trades.asset[0, :, 0] >= 0):
        entry, left = entries[day, trades.asset[0, day, 0]], trades.exit[0, day, 0]
        gain = left * (1.0 - cost) / (entry * (1.0 + cost)) - 1.0
        gains.append(gain - market[day, due[0, day, 0] - day])
    assert excess is not None
    assert alpha is not None
    assert excess.mean == pytest.approx(100.0 * float(np.mean(gains)))
    assert excess.trades == alpha.trades == len(gains)


@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
def test_one_asset_is_the_market_also_where_its_sales_wait(fill: str) -> None:
    trades, known, config = trades_of_one_asset(fill)
    excess, _ = excess_of_trades(trades, known, config.trading)
    assert excess is not None
    assert excess.trades > 10
    assert excess.mean == excess.standard_error == 0.0


@pytest.mark.parametrize("axis", [0, 2], ids=["of agents", "of an agent"])
def test_what_is_decided_on_one_day_counts_together_in_the_errors(axis: int) -> None:
    trades, known = agents_trades(1)
    twice = DecidedTrades(**{name: np.concatenate([values, values], axis) for name, values in vars(trades).items()})
    once, double = (excess_of_trades(held, known, CONFIG.trading) for held in (trades, twice))
    for one, two in zip(once, double, strict=True):
        assert one is not None
        assert two is not None
        assert two.trades == 2 * one.trades
        assert (two.mean, two.standard_error) == pytest.approx((one.mean, one.standard_error))
