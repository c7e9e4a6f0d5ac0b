"""The smallest edges that a holdout can show and that pay their costs, by holding time; known before any training.

An edge is an information coefficient (IC): the correlation, over the assets of a day, of a score with the return from
the fill to the end of the holding time, averaged over days.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import ndtri

from eigen_core.config import Config, TradingConfig
from eigen_core.judging.significance import FEWEST_DAYS, POWER, detectable_ratio
from eigen_core.market import Panel
from eigen_core.trading.equity import Values
from eigen_core.trading.orders import bars_between_decisions
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.synthetic import normalised_over_assets, persistent_noise

BEST = float(-ndtri(0.1))
"""Score (standard deviations) from which assets are bought: their best tenth."""
# To first order, the correlation of being among the best tenth by that of the scores (two normal distributions).
_TAIL = float(np.exp(-(BEST**2))) / (2.0 * np.pi * 0.1 * 0.9)
# In standard errors, so that all three tests of the verdict are significant together; measured on synthetic markets.
_TOGETHER = 0.3
_HOLDING_DAYS = (1, 2, 5, 10, 20)
_KNOWN_DAYS, _PAIRED_DAYS, _PLAYED_DAYS = 1_000, 500, 2_000
_FEWEST_ASSETS, _FEWEST_DECISIONS, _ROUNDING = 3, 50, 1e-9


@dataclass(frozen=True)
class EdgesHeld:
    """The smallest edges of trades that are held for `holding_bars`, of which the holdout has about `trades`.

    `shown`: IC for which `eigen backtest` claims skill at its first look with probability `POWER`. `pays`: IC whose
    trades gain as much beyond the market as they cost. An IC above 1 cannot be had.
    """

    holding_bars: int
    trades: int
    shown: float
    pays: float


def smallest_edges(config: Config, panel: Panel) -> tuple[list[EdgesHeld], str]:
    """Return the smallest edges of the task `market` by holding time, and a sentence on them, or why there are none.

    A trader buys on each day up to `trading.purchases_per_bar` of the assets that it does not hold and whose scores
    are among their best tenth, and holds each for h days. With i the mean score (standard deviations) at which it buys,
    s the standard deviation of returns over the assets of a day, and IC the edge, a trade gains IC i s beyond the
    market in the mean (Grinold 1989, "The fundamental law of active management"). Of n trades that hold the share f of
    N assets at a time, the standard error of the mean gain is

        e = s sqrt((1 - f) / n) sqrt(1 + a (N / N_e - 1))

    The second root assumes that scores err together as returns move together, so that N assets tell as much as N_e
    independent ones (`independent_assets`); purchases of the best tenth do so less by the factor a, `_TAIL`.

    The verdict claims skill if the gain exceeds a critical multiple of e, and the account has gained after its costs, c
    a trade. This has the probability `POWER` if IC i s is the larger of d e and c + z e: z is the normal quantile of
    `POWER`, d is `detectable_ratio` and `_TOGETHER`. Trades pay their costs from IC = c / (i s) on.

    i and n are those of a simulated trader with random scores, as persistent as returns over h days. s, N and N_e are
    those of the last 1,000 training days or, with `trading.decide_every`, times between decisions; of later days only
    the number is used. Sale targets and further looks are left out, and so are holding times over which no price
    changes.
    """
    holdout_bars = len(panel.splits.holdout)
    prices = Prices.of_panel(panel, torch.device("cpu"))
    every = bars_between_decisions(prices.panel_time, config.trading)
    known = prices_of_span(prices, panel.splits.pieces[-1][-_KNOWN_DAYS * every :], 0)
    rows, assets, independent = [], 0, 0.0
    for days in sorted({*(every * days for days in _HOLDING_DAYS), config.trading.holding_bars}):
        trading = config.trading.model_copy(update={"holding_bars": days})
        costs, fills = known.costs(trading), replace(known).fills(trading)
        gains = costs.gain_at_market(fills.entry, fills.exit).numpy()
        ended = np.arange(len(gains))[:, None] + fills.exit_offset.numpy()
        returns = np.where(ended < len(gains), gains, np.nan)
        returns = returns[(~np.isnan(returns)).sum(axis=1) >= _FEWEST_ASSETS]
        spread = np.nanstd(returns, axis=1)
        if holdout_bars < max(FEWEST_DAYS, days + 1) or len(returns) < _FEWEST_DECISIONS or spread.max() <= _ROUNDING:
            continue
        assets = int((~np.isnan(returns[-1])).sum())
        independent = min(independent or independent_assets(returns[::days]), assets)
        score, daily_trades = _trader(assets, trading, every)
        trades, free = daily_trades * holdout_bars, 1.0 - daily_trades * days / assets
        error = float((spread**2).mean() * free / trades * (1.0 + _TAIL * (assets / independent - 1.0))) ** 0.5
        detectable = detectable_ratio(max(holdout_bars // days - 2, 1)) + _TOGETHER
        gain, cost = score * float(spread.mean()), float(np.mean(costs.numpy().buying + costs.numpy().selling))
        # Trades of the last days end with the holdout, after half of their time in the mean.
        shown = max(detectable * error, cost + float(ndtri(POWER)) * error) / (1.0 - 0.5 * days / holdout_bars)
        rows.append(EdgesHeld(days, round(trades), shown / gain, cost / gain))
    if not rows:
        return [], "With so few holdout bars, assets or prices nobody can say which edges could be shown."
    return rows, (
        f"Breadth, independent assets ({independent:.0f} for the {assets} here) times holding times, makes an edge "
        "visible: more bars alone leave the IC that pays the costs as it is."
    )


def independent_assets(returns: Values) -> float:
    """Return the number of independent assets whose returns would tell as much: float64 `[days, assets]`, NaN: none.

    Over N independent assets the correlation of two days' returns has mean 0 and variance 1 / (N - 1). So this is 1
    plus the inverse of the mean squared correlation of days, which should not overlap, with returns scaled by asset.
    """
    days = returns[np.unique(np.linspace(0, len(returns) - 1, _PAIRED_DAYS).astype(int))]
    deviation = normalised_over_assets(days)
    by_asset = ((deviation**2).sum(axis=0) / np.maximum((~np.isnan(days)).sum(axis=0), 1)) ** 0.5
    normalised = normalised_over_assets(np.where(np.isnan(days), np.nan, deviation / np.maximum(by_asset, _ROUNDING)))
    normalised /= np.maximum((normalised**2).sum(axis=1, keepdims=True) ** 0.5, 1.0)
    correlations = (normalised @ normalised.T)[np.triu_indices(len(days), 1)]
    return 1.0 + 1.0 / float((correlations**2).mean())


def _trader(assets: int, trading: TradingConfig, every: int) -> tuple[float, float]:
    """Return the mean score at which the trader of `smallest_edges` buys, every so many days, and its trades a day."""
    scores = normalised_over_assets(persistent_noise(0, _PLAYED_DAYS * every, assets, trading.holding_bars))
    free_from, bought = np.zeros(assets, dtype=np.int64), []
    for day, score in enumerate(scores):
        wanted = np.flatnonzero((score >= BEST) & (free_from <= day) & (day % every == 0))
        best = wanted[np.argsort(-score[wanted])][: trading.purchases_per_bar]
        free_from[best] = day + trading.holding_bars
        bought.append(score[best])
    paid = np.concatenate(bought)
    return float(paid.mean()), len(paid) / len(scores)
