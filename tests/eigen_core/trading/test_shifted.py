"""What an agent's decisions earn at other times keeps its exposure, and leaves only the times to luck."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trading_cases import panel_of, prices_of

from eigen_core.config import Config, TradingConfig
from eigen_core.trading import DecidedTrades, Prices, trade_accounts
from eigen_core.trading.matched_traders import fewest_days, play_shifted_trades, play_shifted_weights, shifts_of
from eigen_core.trading.prices import prices_of_span
from eigen_core.trading.trades import trade_day_by_day
from eigen_core.trading.weights import weights_accounts

DAYS, HOLDING = 90, 5
CONFIG = Config.model_validate(
    {"trading": {"holding_days": HOLDING, "settlement_days": HOLDING, "cost_bps": 0.0, "slippage_bps": 0.0}}
)
MOST = 1_000


def market(closes: np.ndarray) -> tuple[Prices, np.ndarray]:
    panel = panel_of(closes, closes, closes)
    return prices_of_span(prices_of(panel), range(len(closes)), HOLDING), panel.dates


def trades_on(days: list[int], known: Prices, asset: int = 0) -> DecidedTrades:
    entries, closes = known.fills(CONFIG.trading).entry.numpy(), known.last_close.numpy()
    trades = DecidedTrades.none(1, DAYS)
    for day in days:
        trades.asset[0, day], trades.exit_day[0, day], trades.at_open[0, day] = asset, day + HOLDING, True
        trades.entry[0, day], trades.coefficient[0, day] = entries[day, asset], CONFIG.trading.max_coefficient
        trades.exit[0, day] = closes[day + HOLDING, asset]
    return trades


def test_shifts_are_all_beyond_the_holding_time_both_ways() -> None:
    found = shifts_of(DAYS, CONFIG.trading, MOST)
    assert (found[0], found[-1], len(found)) == (HOLDING + 1, DAYS - HOLDING - 1, DAYS - 2 * HOLDING - 1)
    some = shifts_of(DAYS, CONFIG.trading, 7)
    assert len(some) == 7
    assert {found[0], found[-1]} <= set(some) <= set(found)
    assert not len(shifts_of(2 * HOLDING, CONFIG.trading, MOST))
    trading = TradingConfig(holding_days=20)
    assert len(shifts_of(fewest_days(trading), trading, MOST)) == 19


def test_decisions_that_knew_the_right_days_are_the_best_of_all_times() -> None:
    steps = np.where(np.arange(DAYS) % 30 == 10, 0.2, 0.0)[:, None]
    steps[40] = 0.0
    known, dates = market(100.0 * np.exp(np.cumsum(steps, axis=0)))
    trades = trades_on([7, 67], known)
    own = trade_accounts(trades, known.last_close[:DAYS].numpy(), dates, CONFIG.trading, CONFIG.account).curve(0)
    found = play_shifted_trades(trades, known, dates, CONFIG, MOST)
    assert found.quantile_of(own.equity[-1] / own.capital - 1.0) == 1.0
    # At most other times nothing happens; shifted by a month, one of both is right.
    assert found.median_return == 0.0
    assert 0.0 < found.total_returns.max() < own.equity[-1] / own.capital - 1.0


def test_a_steady_market_gives_every_time_as_much() -> None:
    known, dates = market(100.0 * 1.01 ** np.arange(DAYS)[:, None])
    trades = trades_on([20, 25, 30, 50], known)
    own = trade_accounts(trades, known.last_close[:DAYS].numpy(), dates, CONFIG.trading, CONFIG.account).curve(0)
    found = play_shifted_trades(trades, known, dates, CONFIG, MOST).total_returns
    whole = found[np.isclose(found, own.equity[-1] / own.capital - 1.0, rtol=1e-9)]
    # The end of the days cuts each of the trades off at some of the other times.
    assert len(whole) == len(found) - 4 * HOLDING
    assert (found <= own.equity[-1] / own.capital - 1.0 + 1e-9).all()
    weights = np.full((1, DAYS, 1), 0.5)
    own = weights_accounts(weights, known, dates, CONFIG.trading, CONFIG.account).curve(0)
    found = play_shifted_weights(weights, known, dates, CONFIG, MOST).total_returns
    np.testing.assert_allclose(found, own.equity[-1] / own.capital - 1.0)


def test_the_wait_of_a_sale_is_not_shifted_with_its_trade() -> None:
    """The market of the other days does not halt: a sale there is filled when it is due."""
    closes: NDArray[np.float64] = 100.0 * 1.01 ** np.arange(DAYS, dtype=np.float64)[:, None]
    closes[22:36] = np.nan
    panel = panel_of(closes, closes, closes)
    panel = replace(panel, valid=np.ones_like(panel.valid))
    known = prices_of_span(prices_of(panel), range(DAYS), HOLDING)
    size = CONFIG.trading.max_coefficient or 1.0
    trading = CONFIG.trading.model_copy(update={"min_target": 5.0, "max_target": 6.0})

    def decide(day: int, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((1, 1), size if day == 20 else 0.0), torch.full((1, 1), 6.0)

    trades = trade_day_by_day(known, trading, DAYS, 1, decide)
    assert trades.exit_day[0, 20, 0] == 36
    found = play_shifted_trades(trades, known, panel.dates, CONFIG, MOST)
    assert found.median_return == pytest.approx((1.01 ** (HOLDING - 1) - 1.0) / HOLDING)


def test_weights_keep_their_exposure_where_an_asset_is_not_tradable() -> None:
    closes = np.repeat(100.0 * 1.01 ** np.arange(DAYS)[:, None], 3, axis=1)
    closes[:40, 1] = np.nan
    known, dates = market(closes)
    weights = np.zeros((1, DAYS, 3))
    weights[0, :, 1] = 0.8
    tradable = known.tradable[:DAYS].numpy()
    found = play_shifted_weights(weights, known, dates, CONFIG, MOST).total_returns
    spread = np.array([[[0.4, 0.0, 0.4]]]) * ~tradable[None, :, 1:2] + weights * tradable
    even = weights_accounts(spread, known, dates, CONFIG.trading, CONFIG.account).curve(0)
    np.testing.assert_allclose(found, even.equity[-1] / even.capital - 1.0)
