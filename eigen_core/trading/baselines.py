"""Baselines: simple rules that use prices alone and trade with the same costs and fills as agents.

A year has `periods_per_year` days (252 on stock exchanges), a month a twelfth of them.

equal_weight: the same money in each asset that has a price by the first day, held to the end. Each is bought at its own
    first fill: an asset that is filled later than others gets its share of the equity of that day, at most the cash.
rebalanced: the same money in each tradable asset, again every day.
momentum: every month the same money in the third of the assets with the highest return over the year before the last
    month (Jegadeesh and Titman 1993, "Returns to buying winners and selling losers", without its sold losers; the last
    month is left out because it reverses).
reversal: every month the same money in the third with the lowest return over the last month (Jegadeesh 1990, "Evidence
    of predictable behavior of security returns", without its sold winners).
classic: the trading rules of the system that Eigen replaces, driven by a fixed indicator instead of an agent: each day
    the assets with the highest return over 120 days of those that are not held, `trading.purchases_per_day` of them,
    are bought with the largest coefficient, and sold at `trading.max_target` or after `trading.holding_days`.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config, TradingConfig
from eigen_core.trading.equity import EquityCurve, Values, periods_per_year
from eigen_core.trading.order_fills import ended_by
from eigen_core.trading.portfolio import weights_accounts
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.trades import DecidedTrades, trade_accounts, trade_day_by_day

MONTHS, INDICATOR = 12, 120


def baseline_curves(
    prices: Prices, dates: NDArray[np.datetime64], config: Config, span: range
) -> Mapping[str, EquityCurve]:
    """Return the equity of each baseline over a span, by name; `cash` earns interest alone.

    Prices and dates, datetime64[D], are of all days; those after the span are not used. A rule leaves out assets
    without the prices that it needs; without any asset, the money stays cash.
    """
    trading = config.trading
    known = prices_of_span(prices, span, trading.holding_days)
    all_dates, days, dates = dates, len(span), dates[span.start : span.stop]
    tradable = known.tradable[:days].cpu().numpy()
    before = prices.last_close[: span.stop].cpu().numpy()
    unchanged = np.full(tradable.shape, np.nan)
    year = periods_per_year(all_dates, config.account, span)
    month_days = max(1, round(year / MONTHS))
    month = np.arange(days) % month_days == 0
    weights = {
        "cash": unchanged,
        "equal_weight": _bought_once(prices, known, trading, span),
        "rebalanced": equal_weights(tradable),
        "momentum": np.where(month[:, None], _top_third(_returns(before, span, year, month_days), tradable), unchanged),
        "reversal": np.where(month[:, None], _top_third(-_returns(before, span, month_days, 0), tradable), unchanged),
    }
    held = np.stack(list(weights.values()))
    accounts = weights_accounts(held, known, dates, trading, config.account)
    curves = {name: accounts.curve(index) for index, name in enumerate(weights)}
    indicator = _returns(before, span, INDICATOR, 0)
    classic = trade_accounts(_classic_trades(known, trading, indicator), known, dates, trading, config.account)
    return {**curves, "classic": classic.curve(0)}


def _returns(last_close: Values, span: range, since: int, until: int) -> Values:
    """Return each asset's return from `since` to `until` days before each day of a span; NaN where unknown."""
    days = np.arange(span.start, span.stop)
    start = np.maximum(days - since, 0)
    change = last_close[np.maximum(days - until, 0)] / last_close[start] - 1.0
    returns: Values = np.where((days >= since)[:, None], change, np.nan)
    return returns


def equal_weights(chosen: NDArray[np.bool_]) -> Values:
    """Return the same share in each of the chosen assets of each day, float64 `[days, assets]`."""
    weights: Values = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)
    return weights


def _bought_once(prices: Prices, known: Prices, trading: TradingConfig, span: range) -> Values:
    """Return weights that buy each asset at its first fill, float64 `[days, assets]`; NaN: the position stays.

    It buys the assets that have a first price but have not ended, on the first day of the span that has such assets.
    """
    priced, session = (values[: span.stop].cpu() for values in (prices.tradable, prices.session))
    begun, ended = priced.cummax(0).values, ended_by(priced, session, trading.delisting_days)
    alive = (begun & ~ended)[span.start :].numpy()
    chosen = alive[alive.any(axis=1).argmax()]
    filled = ~known.fills(trading).entry[: len(span)].isnan().cpu().numpy()
    first = filled & chosen & (filled.cumsum(axis=0) == 1)
    weights: Values = np.where(first, 1.0 / max(int(chosen.sum()), 1), np.nan)
    return weights


def _top_third(score: Values, tradable: NDArray[np.bool_]) -> Values:
    """Return equal weights of the third, rounded up, of the tradable assets with the highest known score."""
    ranked = np.where(tradable & ~np.isnan(score), score, -np.inf)
    number = np.isfinite(ranked).sum(axis=1, keepdims=True)
    order = np.argsort(-ranked, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(score.shape[1])[None], axis=1)
    return equal_weights(rank < -(-number // 3))


def _classic_trades(known: Prices, trading: TradingConfig, indicator: Values) -> DecidedTrades:
    coefficient = trading.max_coefficient or max(trading.buy_threshold, 1.0)
    scores = torch.tensor(indicator, device=known.close.device)
    targets = torch.full((1, known.assets), trading.max_target, device=known.close.device)
    number = min(trading.purchases_per_day, known.assets)

    def decide(day: int, portfolios: Tensor) -> tuple[Tensor, Tensor]:
        free = known.tradable[day] & (portfolios[0, :, 0] == 0.0) & ~scores[day].isnan()
        score = torch.where(free, scores[day], -torch.inf)
        chosen = free & (score >= score.topk(number).values[-1])
        return torch.where(chosen, coefficient, 0.0).unsqueeze(0), targets

    seeing = trading.model_copy(update={"observe_portfolio": True})
    return trade_day_by_day(known, seeing, len(scores), 1, decide)
