"""A market whose oracle's account can be computed by hand: the figures are those."""

import numpy as np
import pytest

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading import DecidedTrades, trade_accounts
from eigen_core.trading.metrics import compute_metrics

_GROWTH = 0.01
_HOLDING = 5
_CYCLES = 12


def test_an_oracle_of_steady_growth_earns_what_a_formula_says() -> None:
    days = _HOLDING * _CYCLES + 1
    # Each day opens at the close before it, so a fill at the open pays the close of the decision.
    rising = 50.0 * (1.0 + _GROWTH) ** np.arange(days)
    closes = np.stack([rising, np.full(days, 20.0)], axis=1)
    trades = DecidedTrades.none(1, days)
    for day in range(0, days - 1, _HOLDING):
        decided = (0, day, 0)
        trades.asset[decided], trades.exit_day[decided] = 0, day + _HOLDING
        trades.entry[decided], trades.exit[decided] = rising[day], rising[day + _HOLDING]
        trades.at_open[decided], trades.coefficient[decided] = True, 3.0
    trading = TradingConfig(holding_days=_HOLDING, settlement_days=_HOLDING, cost_bps=0.0, slippage_bps=0.0)
    dates = np.datetime64("2020-01-01") + np.arange(days)
    accounts = trade_accounts(trades, closes, dates, trading, AccountConfig(capital=1_000.0))
    figures = compute_metrics(accounts.curve(0), periods_per_year=252)
    # A fifth of the equity grows for five days, then is sold and a fifth of the new equity is bought.
    cycle = 1.0 + ((1.0 + _GROWTH) ** _HOLDING - 1.0) / _HOLDING
    assert figures.total_return == pytest.approx(cycle**_CYCLES - 1.0, rel=1e-12)
    assert figures.cagr == pytest.approx(cycle ** (_CYCLES * 252 / days) - 1.0, rel=1e-9)
    assert figures.max_drawdown == 0.0
    assert figures.longest_drawdown_days == 0
    assert figures.win_days == 1.0
    gains = [1.0 + ((1.0 + _GROWTH) ** day - 1.0) / _HOLDING for day in range(_HOLDING + 1)]
    returns = [0.0, *np.tile(np.diff(gains) / gains[:-1], _CYCLES)]
    assert figures.volatility == pytest.approx(np.std(returns, ddof=1) * 252**0.5, rel=1e-9)
    assert figures.sharpe == pytest.approx(np.mean(returns) / np.std(returns, ddof=1) * 252**0.5, rel=1e-9)
    bought = cycle ** np.arange(_CYCLES) * 1_000.0 / _HOLDING
    assert accounts.curve(0).traded.sum() == pytest.approx((bought * (1.0 + (1.0 + _GROWTH) ** _HOLDING)).sum())
