"""How often the verdict claims skill of traders of one asset whose skill in timing is known."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.judging.backtest import PortfolioBacktest, SpanResult
from eigen_core.judging.verdicts import Verdict, verdict_on
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices, read_prices
from eigen_core.trading.baselines import play_shifted
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.excess import alpha_of_days, excess_of_trades
from eigen_core.trading.order_fills import OrderCosts
from eigen_core.trading.portfolio import target_weights
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.synthetic import coming_returns, persistent_noise, unpredictable_prices
from eigen_core.trading.trades import DecidedTrades, trade_accounts

_DAYS, _FIRST = 251, 300
_MARKETS = 5
_DRAWS = 1_000
_SLOW, _MONTH = 60, 20
_EDGES = (0.1, 0.2, 0.3)
_BUYS_ABOVE = 0.5

Values = NDArray[np.float64]
Scores = Callable[[Panel, Config, int], Values]


def run(markets: int = _MARKETS) -> Section:
    kinds: Mapping[str, Scores] = {
        "new every day": partial(_noise, lasting=1),
        f"lasting {_SLOW} days": partial(_noise, lasting=_SLOW),
        f"the trend of {_SLOW} days": _trend,
        f"calm prices for {_MONTH} days": _calm,
        **{f"correlation {edge:g}": partial(_informed, edge=edge) for edge in _EDGES},
    }
    ways: Mapping[str, tuple[int, Callable[[Panel, Config, range, Values, str], Verdict | None]]] = {
        "trades of 5 days": (5, _of_trades),
        "trades of 20 days": (20, _of_trades),
        "weights": (5, _of_weights),
    }
    rows = [[name] for name in kinds]
    for holding, judged in ways.values():
        config = Config.model_validate({"trading": {"holding_bars": holding, "settlement_bars": holding}})
        for row, (name, scores) in zip(rows, kinds.items(), strict=True):
            verdicts = [
                verdict
                for seed, panel in _single_assets(config, markets)
                if (verdict := judged(panel, config, _year(seed), scores(panel, config, seed), f"{name} {seed}"))
            ]
            claimed = sum(verdict.claim == "skill" for verdict in verdicts)
            row.append(f"{claimed} of {len(verdicts)}")
    return Section(
        title="Claims of skill in timing, of traders of one asset whose skill is known",
        method=(
            f"Each of 20 assets alone is a market, in {markets} markets made of the bundled prices in which nothing "
            "can be predicted; one year of it is judged. A trader that holds nothing buys where its score is above "
            f"{_BUYS_ABOVE:g} standard deviations, and sells after 5 or 20 days; a portfolio holds the share that the "
            "softmax of twice the score with cash gives, every day again. The first four scores know nothing of the "
            "coming days. The others correlate, over all days, with the return over the holding time (5 days for "
            "weights), and are about as persistent. Judged by the same decisions shifted in time, by the excess over "
            "any day, and by the alpha on the asset."
        ),
        columns=("scores", *ways),
        rows=rows,
        remarks=("The rule allows 5 %. Fills at the next open, costs and slippage as they are by default.",),
    )


def _single_assets(config: Config, markets: int) -> Iterator[tuple[int, Panel]]:
    prices, seed = read_prices(config), 0
    for market in range(markets):
        panel = panel_of_clean_prices(unpredictable_prices(prices, market), config.market, f"noise {market}")
        for asset in range(panel.assets):
            own = {name: getattr(panel, name)[:, asset : asset + 1] for name in ("open", "high", "low", "close")}
            features, valid = panel.features[:, asset : asset + 1], panel.valid[:, asset : asset + 1]
            yield seed, replace(panel, features=features, valid=valid, symbols=(panel.symbols[asset],), **own)
            seed += 1


def _year(seed: int) -> range:
    first = _FIRST + seed % 20 * _DAYS
    return range(first, first + _DAYS)


def _of_weights(panel: Panel, config: Config, span: range, scores: Values, key: str) -> Verdict:
    tradable = np.asarray(panel.close) > 0.0
    weights = target_weights(torch.tensor(2.0 * scores[:, None]), torch.tensor(tradable)).numpy()
    market, own = PortfolioBacktest(config, panel, torch.device("cpu")), weights[None, span.start : span.stop]
    return verdict_on(market.played(own, 1, span, market.accounts(own, span).curve(0), key, draws=_DRAWS), config)


def _of_trades(panel: Panel, config: Config, span: range, scores: Values, key: str) -> Verdict | None:  # noqa: ARG001
    trading, prices = config.trading, Prices.of_panel(panel, torch.device("cpu"))
    known = prices_of_span(prices, span, trading.holding_bars)
    dates, closes = panel.dates[span.start : span.stop], known.last_close.numpy()
    entries, trades, free_from = known.fills(trading).entry.numpy(), DecidedTrades.none(1, _DAYS), 0
    for day in range(_DAYS - 1):
        if day < free_from or not scores[span.start + day] > _BUYS_ABOVE or np.isnan(entries[day, 0]):
            continue
        free_from = day + trading.holding_bars
        trades.asset[0, day], trades.exit_day[0, day], trades.at_open[0, day] = 0, free_from, True
        trades.entry[0, day], trades.coefficient[0, day] = entries[day, 0], trading.max_coefficient
        trades.exit[0, day] = OrderCosts.of(trading).sale_price(closes[free_from, 0])
    if (trades.asset >= 0).sum() < 2:
        return None
    year = periods_per_year(panel.dates, config.account, span)
    account = trade_accounts(trades, known, dates, trading, config.account).curve(0)
    asset = np.diff(closes[:_DAYS, 0], prepend=closes[0, 0]) / np.concatenate([closes[:1, 0], closes[: _DAYS - 1, 0]])
    shifted = play_shifted(trades, known, dates, config, _DRAWS)
    played = SpanResult(
        curve=account,
        trades=pd.DataFrame(),
        interest=0.0,
        one_portfolio=False,
        baselines={"equal_weight": replace(account, equity=account.capital * np.cumprod(1.0 + asset))},
        baskets=("equal_weight",),
        matched=shifted,
        timing=shifted,
        by_timing=True,
        excess=excess_of_trades(trades, known, trading, any_day=True)[0],
        alpha=alpha_of_days(account.returns, asset, year),
        holding_bars=trading.holding_bars,
        periods_per_year=year,
        risk_free=0.0,
    )
    return verdict_on(played, config)


def _normalised(values: Values) -> Values:
    known = np.nan_to_num(values - np.nanmean(values))
    scores: Values = known / known.std()
    return scores


def _noise(panel: Panel, config: Config, seed: int, lasting: int) -> Values:  # noqa: ARG001
    draws = keyed_generator(0, "timing claims", seed, lasting, "scores").standard_normal(panel.days + lasting)
    drawn = np.cumsum(draws)
    scores: Values = (drawn[lasting:] - drawn[:-lasting]) / np.sqrt(lasting)
    return scores


def _log_closes(panel: Panel) -> Values:
    logs: Values = np.log(Prices.of_panel(panel, torch.device("cpu")).last_close.numpy()[:, 0])
    return logs


def _trend(panel: Panel, config: Config, seed: int) -> Values:  # noqa: ARG001
    closes = _log_closes(panel)
    return _normalised(np.concatenate([np.full(_SLOW, np.nan), closes[_SLOW:] - closes[:-_SLOW]]))


def _calm(panel: Panel, config: Config, seed: int) -> Values:  # noqa: ARG001
    steps = np.nan_to_num(np.abs(np.diff(_log_closes(panel), prepend=np.nan)))
    summed = np.cumsum(steps)
    return -_normalised(np.concatenate([np.full(_MONTH, np.nan), summed[_MONTH:] - summed[:-_MONTH]]))


def _informed(panel: Panel, config: Config, seed: int, edge: float) -> Values:
    known = _normalised(coming_returns(panel, config.trading)[:, 0])
    noise = _normalised(persistent_noise(seed, panel.days, 1, config.trading.holding_bars)[:, 0])
    return _normalised(edge * known + np.sqrt(1.0 - edge**2) * noise)
