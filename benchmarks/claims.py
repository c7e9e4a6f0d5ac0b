"""How often the verdict claims skill of traders whose skill is known, on years of the bundled prices."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.judging.backtest import SpanResult, backtest_class
from eigen_core.judging.verdicts import Verdict, verdict_on
from eigen_core.market import Panel, build_panel
from eigen_core.trading.baselines import MatchedTraders, matched_traders
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.excess import excess_of_trades
from eigen_core.trading.order_fills import OrderCosts
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.trades import DecidedTrades, trade_accounts

_DAYS = 251
_FIRST, _EVERY = 300, 520
_TRADERS = 8
_DRAWS = 200
_SKILLS = (0.0, 0.05, 0.1, 0.2, 0.3)
_RISKY = 1.5
_SELECTIVE = 2.0
_RULES = ((5, None), (5, _SELECTIVE), (20, None), (20, _SELECTIVE))

Values = NDArray[np.float64]


@dataclass(frozen=True)
class _Year:
    """A year of prices, and what each asset gains from the fill of a day's decision until the end of its holding."""

    known: Prices
    dates: NDArray[np.datetime64]
    entries: Values
    closes: Values
    gains: Values
    market: Values
    beta: Values


def run() -> Section:
    rows = []
    for holding, threshold in _RULES:
        rules = {"trading": {"holding_bars": holding, "settlement_bars": holding}}
        config = Config.model_validate(rules)
        panel, _ = build_panel(config)
        years = [_year(panel, config, first) for first in range(_FIRST, panel.days - _DAYS, _EVERY)]
        row = [f"{holding} days, {'every day' if threshold is None else 'selective'}"]
        for skill in (None, *_SKILLS):
            verdicts = [verdict for year in years for verdict in _judged(year, config, skill, threshold)]
            claimed = sum(verdict.claim == "skill" for verdict in verdicts)
            row.append(f"{claimed} of {len(verdicts)}")
        rows.append(row)
    return Section(
        title="Claims of skill, of traders whose skill is known",
        method=(
            f"On years of the bundled prices, {_EVERY} days apart, {_TRADERS} traders each see a signal whose "
            "correlation with what an asset gains over the holding time is given, new every day. They buy the free "
            f"asset with the highest signal, every day, or only if it is above {_SELECTIVE:g} standard deviations. "
            "Traders that prefer risky assets know nothing: their signal is normal noise and "
            f"{_RISKY:g} times the standardised beta. Each is judged by its excess and by {_DRAWS} matched random "
            "traders."
        ),
        columns=("held, buys", "prefer risky assets", *(f"correlation {skill:g}" for skill in _SKILLS)),
        rows=rows,
        remarks=(
            "Who buys one of 20 assets every day and holds each for 20 days holds nearly all of them, whatever the "
            "signal: such an account cannot show skill, and none is claimed.",
            "The baseline `ridge`, fitted to the days before each year but the first: skill is claimed in "
            f"{' and '.join(_ridge(holding) for holding in (5, 20))}.",
        ),
    )


def _ridge(holding: int) -> str:
    """Return in how many of the years skill is claimed for `ridge`, which chooses its threshold itself."""
    claims = []
    dates = build_panel(Config())[0].dates
    for first in range(_FIRST + _EVERY, len(dates) - _DAYS, _EVERY):
        market = {"last_date": str(dates[first + _DAYS - 1]), "holdout": _DAYS}
        trading = {"holding_bars": holding, "settlement_bars": holding}
        config = Config.model_validate({"market": market, "trading": trading})
        panel, _ = build_panel(config)
        played = backtest_class(config)(config, panel, torch.device("cpu")).play_ridge(panel.splits.holdout, _DRAWS)
        claims.append(verdict_on(played, config).claim)
    return f"{claims.count('skill')} of {len(claims)} (held {holding} days)"


def _year(panel: Panel, config: Config, first: int) -> _Year:
    span, holding = range(first, first + _DAYS), config.trading.holding_bars
    known = prices_of_span(Prices.of_panel(panel, torch.device("cpu")), span, holding)
    entries, closes = known.fills(config.trading).entry.numpy()[:_DAYS], known.last_close.numpy()
    last = np.minimum(np.arange(_DAYS) + holding, len(closes) - 1)
    returns = np.nan_to_num(np.diff(closes[:_DAYS], axis=0, prepend=closes[:1]) / closes[:_DAYS])
    market = returns.mean(axis=1)
    beta = returns.T @ (market - market.mean()) / ((market - market.mean()) ** 2).sum()
    dates = panel.dates[span.start : span.stop]
    return _Year(known, dates, entries, closes, closes[last] / entries - 1.0, market, beta)


def _judged(year: _Year, config: Config, skill: float | None, threshold: float | None) -> Iterator[Verdict]:
    for trader in range(_TRADERS):
        key = f"{year.dates[0]} {trader} {skill}"
        signal = _signal(year, skill, keyed_generator(0, "claims", key, "signal"))
        trades = _trade(year, config, signal, threshold)
        if (trades.asset >= 0).sum() < 2:
            continue
        account = trade_accounts(trades, year.known, year.dates, config.trading, config.account)
        matched = [
            trade_accounts(group, year.known, year.dates, config.trading, config.account).equity[:, -1]
            for group in matched_traders(trades, year.known, config.trading, _DRAWS, 0, key)
        ]
        excess, alpha = excess_of_trades(trades, year.known, config.trading)
        curve, capital = account.curve(0), config.account.capital
        market = np.asarray(capital * np.cumprod(1.0 + year.market), dtype=np.float64)
        played = SpanResult(
            curve=curve,
            trades=pd.DataFrame(),
            interest=0.0,
            one_portfolio=False,
            baselines={"all assets": replace(curve, equity=market)},
            baskets=("all assets",),
            matched=MatchedTraders(np.concatenate(matched) / capital - 1.0, "random traders"),
            timing=MatchedTraders(np.empty(0), "shifts"),
            excess=excess,
            alpha=alpha,
            holding_bars=config.trading.holding_bars,
            periods_per_year=periods_per_year(year.dates, config.account),
            risk_free=0.0,
        )
        yield verdict_on(played, config)


def _signal(year: _Year, skill: float | None, generator: np.random.Generator) -> Values:
    """Return a signal of so much skill, or of a preference for risky assets (None): `[days - 1, assets]`."""
    gains = year.gains[:-1]
    noise = generator.standard_normal(gains.shape)
    if skill is None:
        preferred: Values = noise + _RISKY * (year.beta - year.beta.mean()) / year.beta.std()
        return preferred
    centred = gains - np.nanmean(gains, axis=1, keepdims=True)
    scores = np.where(np.isnan(gains), 0.0, centred / np.nanstd(gains, axis=1, keepdims=True))
    signal: Values = skill * scores + np.sqrt(1.0 - skill**2) * noise
    return signal


def _trade(year: _Year, config: Config, signal: Values, threshold: float | None) -> DecidedTrades:
    trading, known = config.trading, ~np.isnan(year.gains[:-1])
    trades = DecidedTrades.none(1, _DAYS)
    free_from = np.zeros(signal.shape[1], dtype=np.int64)
    for day in range(_DAYS - 1):
        free = known[day] & (free_from <= day)
        # Who waits for a strong signal buys nothing where the strongest is of an asset held already.
        among = known[day] if threshold is not None else free
        asset = int(np.where(among, signal[day], -np.inf).argmax())
        if not free[asset] or (threshold is not None and signal[day, asset] < threshold):
            continue
        sold = min(day + trading.holding_bars, len(year.closes) - 1)
        free_from[asset] = day + trading.holding_bars
        trades.asset[0, day], trades.exit_day[0, day], trades.at_open[0, day] = asset, free_from[asset], True
        trades.entry[0, day], trades.coefficient[0, day] = year.entries[day, asset], trading.max_coefficient
        trades.exit[0, day] = OrderCosts.of(trading).sale_price(year.closes[sold, asset])
    return trades
