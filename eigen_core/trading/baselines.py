"""Baselines of agents: simple trading rules, random traders that resemble an agent, and its decisions shifted in time.

A span is a range of days, rows of the prices; K is `trading.purchases_per_bar`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.trading.equity import EquityCurve, Values, periods_per_year
from eigen_core.trading.order_fills import ended_by, fill_offset
from eigen_core.trading.orders import batch_slices
from eigen_core.trading.portfolio import equal_weights_like, weights_accounts
from eigen_core.trading.prices import Prices, prices_of_span, start_of
from eigen_core.trading.trades import DecidedTrades, last_equity, trade_accounts, trade_day_by_day

_MONTHS, _INDICATOR_DAYS = 12, 120
FEWEST_SHIFTS = 19
"""Fewest shifts in time (`shifts_of`) with which a result can be significant at 5 %."""

_TRADERS = "random traders with the same days, sizes and holding times"
_PORTFOLIOS = "random portfolios with the same weights in other assets"
_SHIFTS = "shifts of its own decisions in time"

V = TypeVar("V", bound=np.generic)


def baseline_curves(
    prices: Prices, dates: NDArray[np.datetime64], config: Config, span: range
) -> Mapping[str, EquityCurve]:
    """Return the equity of simple trading rules over a span, by name; costs and fills are those of agents.

    `prices` and `dates`, datetime64[D], are of all days; those after the span are not used. A rule leaves out assets
    without the prices that it needs; one that never holds an asset is left out. A year has `periods_per_year` days (252
    on stock exchanges), a month a twelfth of them.

    cash: interest alone, on the cash beside what the account holds from the start.
    equal_weight: the same money in each asset that has had a price by the first day, bought at its first fill in the
        span and held to the end: an asset that is filled later gets its share of that day's equity, at most the cash.
    rebalanced: the same money in each tradable asset, again every day.
    momentum: every month the same money in the third of the assets with the highest return from a year to a month ago;
        the last month is left out because it tends to reverse (Jegadeesh and Titman 1993, "Returns to buying winners
        and selling losers", without selling losers short).
    reversal: every month the same money in the third of the assets with the lowest return over the last month
        (Jegadeesh 1990, "Evidence of predictable behavior of security returns", without selling winners short).
    classic: the trading rules of the system that Eigen replaces, with a fixed indicator instead of an agent: each day
        it buys, with the largest coefficient, the K assets with the highest return over 120 days among those that it
        does not hold. It sells them at `trading.max_target` or after `trading.holding_bars`.
    """
    trading = config.trading
    known = prices_of_span(prices, span, trading.holding_bars)
    all_dates, days, dates = dates, len(span), dates[span.start : span.stop]
    tradable = known.tradable[:days].cpu().numpy()
    before = prices.last_close[: span.stop].cpu().numpy()
    unchanged = np.full(tradable.shape, np.nan)
    year = periods_per_year(all_dates, config.account, span)
    month_days = max(1, round(year / _MONTHS))
    month = np.arange(days) % month_days == 0
    weights = {
        "cash": unchanged,
        "equal_weight": _bought_once(prices, known, trading, span),
        "rebalanced": equal_weights(tradable),
        "momentum": np.where(month[:, None], _top_third(_returns(before, span, year, month_days), tradable), unchanged),
        "reversal": np.where(month[:, None], _top_third(-_returns(before, span, month_days, 0), tradable), unchanged),
    }
    weights = {name: held for name, held in weights.items() if name == "cash" or (held > 0.0).any()}
    held = np.stack(list(weights.values()))
    accounts = weights_accounts(held, known, dates, trading, config.account)
    curves = {name: accounts.curve(index) for index, name in enumerate(weights)}
    indicator = _returns(before, span, _INDICATOR_DAYS, 0)
    trades = trades_by_score(known, trading, indicator, trading.max_target)
    classic = trade_accounts(trades, known, dates, trading, config.account)
    return {**curves, "classic": classic.curve(0)}


def _returns(last_close: Values, span: range, since: int, until: int) -> Values:
    """Return each asset's return between `since` and `until` days before each day of a span; NaN where unknown."""
    days = np.arange(span.start, span.stop)
    start = np.maximum(days - since, 0)
    change = last_close[np.maximum(days - until, 0)] / last_close[start] - 1.0
    return np.where((days >= since)[:, None], change, np.nan)


def equal_weights(chosen: NDArray[np.bool_]) -> Values:
    """Return equal weights of the assets chosen on each day, 0 for the others: float64 `[days, assets]`."""
    weights: Values = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)
    return weights


def _bought_once(prices: Prices, known: Prices, trading: TradingConfig, span: range) -> Values:
    """Return weights that buy, at its first fill, each asset that has had a price and has not ended on the first day of
    the span with such assets: float64 `[days, assets]`; NaN: the position stays."""
    priced, session = (values[: span.stop].cpu() for values in (prices.tradable, prices.session))
    begun, ended = priced.cummax(0).values, ended_by(priced, session, trading.delisting_bars)
    alive = (begun & ~ended)[span.start :].numpy()
    chosen = alive[alive.any(axis=1).argmax()]
    filled = ~known.fills(trading).entry[: len(span)].isnan().cpu().numpy()
    first = filled & chosen & (filled.cumsum(axis=0) == 1)
    return np.where(first, 1.0 / max(int(chosen.sum()), 1), np.nan)


def _top_third(score: Values, tradable: NDArray[np.bool_]) -> Values:
    """Return equal weights of a third (rounded up) of the tradable assets with a score, those of the highest scores."""
    ranked = np.where(tradable & ~np.isnan(score), score, -np.inf)
    number = np.isfinite(ranked).sum(axis=1, keepdims=True)
    order = np.argsort(-ranked, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(score.shape[1])[None], axis=1)
    return equal_weights(rank < -(-number // 3))


def trades_by_score(known: Prices, trading: TradingConfig, score: Values, target: float) -> DecidedTrades:
    """Return trades that buy on each day, at full size, the free assets with the highest scores, `[1, days, K]`.

    `score` is `[days, assets]`, NaN: the asset is not bought; `target` is the sale target of all.
    """
    coefficient = trading.max_coefficient or max(trading.buy_threshold, 1.0)
    scores = torch.tensor(score, device=known.close.device)
    targets = torch.full((1, known.assets), target, device=known.close.device)
    number = min(trading.purchases_per_bar, known.assets)

    def decide(day: int, portfolios: Tensor) -> tuple[Tensor, Tensor]:
        free = known.tradable[day] & (portfolios[0, :, 0] == 0.0) & ~scores[day].isnan()
        score = torch.where(free, scores[day], -torch.inf)
        chosen = free & (score >= score.topk(number).values[-1])
        return torch.where(chosen, coefficient, 0.0).unsqueeze(0), targets

    return trade_day_by_day(known, trading, len(scores), 1, decide)


@dataclass(frozen=True)
class MatchedTraders:
    """Returns of matched traders: random traders or portfolios, or shifted decisions, that resemble some agents.

    Attributes:
        total_returns: last equity / capital - 1 of each draw (one trader for each agent), float64 `[draws]`.
        description: what they have in common with the agents, as words for a sentence.
    """

    total_returns: Values
    description: str

    @property
    def median_return(self) -> float | None:
        """Median of the total returns (fractions); None if there are no traders."""
        return float(np.median(self.total_returns)) if len(self.total_returns) else None

    def quantile_of(self, total_return: float) -> float | None:
        """Return the share of traders that earned less, plus half of those that earned the same; None: no traders."""
        if not len(self.total_returns):
            return None
        below, equal = self.total_returns < total_return, self.total_returns == total_return
        return float(below.mean() + equal.mean() / 2.0)


def _earnings(
    groups: Iterable[DecidedTrades] | Iterable[Values],
    agents: int,
    known: Prices,
    dates: NDArray[np.datetime64],
    config: Config,
) -> Values:
    """Return the total return of each draw; groups: trades `[draws x agents, ...]`, weights `[draws, agents, ...]`."""
    rules = known, dates, config.trading, share_of_capital(config.account, agents)
    finals = [np.empty(0)]
    for group in groups:
        if isinstance(group, DecidedTrades):
            equity = last_equity(group, *rules)
        else:
            equity = weights_accounts(group.reshape(-1, *group.shape[-2:]), *rules).equity[:, -1]
        finals.append(equity.reshape(-1, agents).sum(axis=1))
    return np.concatenate(finals) / start_of(known, config.account)[1] - 1.0


def share_of_capital(settings: AccountConfig, agents: int, times: int = 1) -> AccountConfig:
    """Return the account settings of one agent, if `agents` agents share `times` the capital and `account.start`."""
    start = tuple(f"{symbol} {times * shares / agents!r}" for symbol, shares in settings.holdings.items())
    money = {"capital": times * settings.capital / agents, "fixed_amount": times * settings.fixed_amount}
    return settings.model_copy(update={**money, "start": start})


def play_matched_traders(
    decided: DecidedTrades | Values, known: Prices, dates: NDArray[np.datetime64], config: Config, draws: int, key: str
) -> MatchedTraders:
    """Return the returns of `matched_traders` if agents decide on trades, of `permuted_weights` if on weights.

    Args:
        decided: agents' trades, `[agents, decisions, K]`, or weights, float64 `[agents, days, assets]`, of the same
            capital.
        known, dates: prices of the span, as `prices_of_span` returns them, and its dates, datetime64[D].
        key: text that, with `config.seed`, seeds the draws, such as the name of the agents.
    """
    if isinstance(decided, DecidedTrades):
        traders = matched_traders(decided.with_a_trade(), known, config.trading, draws, config.seed, key)
        return MatchedTraders(_earnings(traders, len(decided.asset), known, dates, config), _TRADERS)
    permuted = permuted_weights(decided, known.tradable[: len(dates)].cpu().numpy(), draws, config.seed, key)
    return MatchedTraders(_earnings(permuted, len(decided), known, dates, config), _PORTFOLIOS)


def matched_traders(
    trades: DecidedTrades, known: Prices, trading: TradingConfig, draws: int, seed: int, key: str
) -> Iterator[DecidedTrades]:
    """Yield `draws` random traders for each agent of `trades`, in batches: `[traders x agents, decisions, K]`.

    A matched trader makes as many trades as its agent, decided on the same days, of the same sizes, with sales due on
    the same days; only the assets are random. So both earn the same from the market's move and from their exposure.

    For each trade of the agent a trader buys, on the day of the decision, a random one of the assets that are tradable
    that day, whose order is filled, and that the trader does not hold; if there is none, it buys nothing. Its sale is
    due at the close of the day on which the agent's sale was due (`DecidedTrades.due_day`). If two agents buy the same
    asset on the same day, their traders buy the same asset too unless one of them holds it: so the accounts of traders
    are as correlated as those of their agents. `seed` and `key` seed the random numbers.
    """
    agents, _, purchases = trades.asset.shape
    # Parts of the draws have generators of their own, which draw for all days of the span.
    parts = batch_slices(draws, agents * purchases * int(known.last_day[0] + 1))
    for some in batch_slices(len(parts), len(range(draws)[parts[0]]) * _values_of(trades)) if parts else ():
        generators = [keyed_generator(seed, part.start, "backtest", key, "matched traders") for part in parts[some]]
        yield _draw_traders(trades, known, trading, [len(range(draws)[part]) for part in parts[some]], generators)


def _draw_traders(
    trades: DecidedTrades,
    known: Prices,
    trading: TradingConfig,
    traders: Sequence[int],
    generators: Sequence[np.random.Generator],
) -> DecidedTrades:
    fills = known.fills(trading)
    entries, sale_days = fills.entry.cpu().numpy(), fills.sale_day.cpu().numpy()
    agents, decisions, purchases = trades.asset.shape
    due_day = trades.due_day(fills)
    due = np.clip(due_day, 0, known.days - 1)
    rows, agent = np.arange(sum(traders))[:, None], np.arange(agents)
    asset = np.full((len(rows), agents, decisions, purchases), -1)
    free_from = np.zeros((len(rows), agents, known.assets), dtype=np.int64)
    held = list(known.held.values())
    free_from[..., held] = fills.exit_offset[0, held].cpu().numpy()
    available, drawn = ~np.isnan(entries), 0
    for index, day in enumerate(trades.day[0].tolist()):
        # Assets lie on a circle in random order; a trader takes the next free asset after a random point. The
        # point belongs to the agent's asset, so that agents that buy the same asset are matched by the same asset.
        points, starts = np.concatenate(
            [_numbers_of_day(*pair, known.assets, day - drawn) for pair in zip(generators, traders, strict=True)],
            axis=1,
        )
        drawn = day + 1
        for purchase in range(purchases):
            bought = trades.asset[:, index, purchase]
            free = available[day] & (free_from <= day)
            ahead = (points[:, None] - starts[:, np.maximum(bought, 0), None]) % 1.0
            chosen = np.where(free, ahead, np.inf).argmin(axis=2)
            buys = (bought >= 0) & free.any(axis=2)
            asset[:, :, index, purchase] = np.where(buys, chosen, -1)
            sold = sale_days[due[:, index, purchase], chosen]
            free_from[rows, agent, chosen] = np.where(buys, sold, free_from[rows, agent, chosen])
    return _trades_at_close(trades.day, asset, due_day, trades.coefficient, known, trading)


def _numbers_of_day(generator: np.random.Generator, traders: int, assets: int, skipped: int) -> Values:
    """Return the random numbers of a day, `[2, traders, assets]`, after those of `skipped` days."""
    generator.bit_generator.random_raw(2 * traders * assets * skipped, output=False)
    return generator.random((2, traders, assets))


def _values_of(trades: DecidedTrades) -> int:
    return max(trades.asset.size, 1) * len(vars(trades))


def _trades_at_close(
    day: NDArray[np.int64],
    asset: NDArray[np.int64],
    due_day: NDArray[np.int64],
    coefficient: Values,
    known: Prices,
    trading: TradingConfig,
) -> DecidedTrades:
    """Return trades without a target, whose sale is due at a close (`Fills`): `[traders x agents, decisions, K]`.

    `asset` (-1: no trade) is `[traders, agents, decisions, K]`; `day` (without K), `due_day` and `coefficient` too, or
    `[agents, decisions, K]`.
    """
    fills = known.fills(trading)
    entries, sales, sale_days = (values.cpu().numpy() for values in (fills.entry, fills.sale, fills.sale_day))
    shape, decided, due = asset.shape, day[..., None], np.clip(due_day, 0, known.days - 1)
    column = np.maximum(asset, 0)
    opened = ~torch.isnan(known.open).cpu().numpy() & (trading.fill == "next_open")
    columns: dict[str, NDArray[Any]] = {
        "asset": asset,
        "exit_day": np.where(due_day < 0, -1, sale_days[due, column]),
        "entry": entries[decided, column],
        "exit": known.costs(trading).numpy().of_assets(column).sale_price(sales[due, column]),
        "target": np.full(shape, np.nan),
        "coefficient": np.broadcast_to(coefficient, shape),
        "at_target": np.zeros(shape, dtype=np.bool_),
        "delisted": fills.sale_delisted.cpu().numpy()[due, column],
        "at_open": opened[decided + fill_offset(trading), column],
    }
    # Of agents that decide nothing too, whose arrays have no values to count rows by.
    rows = shape[0] * shape[1]
    every = np.broadcast_to(day, shape[:-1]).reshape(rows, shape[-2])
    return DecidedTrades(day=every, **{name: values.reshape(rows, *shape[-2:]) for name, values in columns.items()})


def permuted_weights(weights: Values, tradable: NDArray[np.bool_], draws: int, seed: int, key: str) -> Iterator[Values]:
    """Yield weights with the assets permuted, in batches of draws: float64 `[draws, agents, days, assets]`.

    A permuted portfolio is as concentrated and as exposed as the agent's, and, but for the drift of prices, traded as
    much; only which assets have which weights is random.

    A draw is one permutation of all assets, for all days and agents. On days on which some assets are not tradable, the
    permutation is applied to each tradable asset repeatedly until it leads to a tradable one: the result is again a
    permutation, and as few weights as possible change their asset when an asset begins or ends.

    Args:
        weights: weights of the agents, float64 `[agents, days, assets]`; 0 for assets that are not tradable.
        tradable: bool `[days, assets]`.
        seed, key: number and text that seed the permutations.
    """
    sets, of_day = np.unique(tradable, axis=0, return_inverse=True)
    assets = np.arange(weights.shape[2])
    for part in batch_slices(draws, weights.size):
        generator = keyed_generator(seed, part.start, "backtest", key, "permuted assets")
        orders = generator.permuted(np.tile(assets, (len(range(draws)[part]), 1)), axis=1)
        permuted = np.empty((len(orders), *weights.shape))
        for index, tradable_set in enumerate(sets):
            sources = orders
            while (unusable := tradable_set & ~tradable_set[sources]).any():
                sources = np.where(unusable, np.take_along_axis(orders, sources, axis=1), sources)
            sources = np.where(tradable_set, sources, assets)
            days = np.flatnonzero(of_day == index)
            permuted[:, :, days] = np.moveaxis(weights[:, days][:, :, sources], 2, 0)
        yield permuted


def active_share(weights: Values, tradable: NDArray[np.bool_]) -> float:
    """Return the active share of weights: the share of the equity that differs from equal weights of the same exposure.

    This is half of the sum over assets of the absolute differences (Cremers and Petajisto 2009, "How active is your
    fund manager?", equation 1), averaged over days and agents. Both arguments are as in `permuted_weights`.
    """
    equal = equal_weights_like(torch.tensor(weights), torch.tensor(tradable)).numpy()
    return float(np.abs(weights - equal).sum(axis=2).mean() / 2.0)


def fewest_days(trading: TradingConfig) -> int:
    """Return the number of days that a span needs for `FEWEST_SHIFTS` shifts in time (`shifts_of`)."""
    return 2 * trading.holding_bars + 1 + FEWEST_SHIFTS


def shifts_of(days: int, trading: TradingConfig, most: int) -> NDArray[np.int64]:
    """Return the numbers of days, at most `most`, by which to shift decisions later around a span of `days` days.

    Decisions shifted beyond the end go on at the beginning; all move by more than `trading.holding_bars` either way. If
    there are more such shifts than `most`, they are taken at equal distances.
    """
    every = np.arange(trading.holding_bars + 1, days - trading.holding_bars)
    if len(every) <= most:
        return every
    return every[np.linspace(0, len(every) - 1, most).round().astype(np.int64)]


def _shift(values: NDArray[V], shifts: NDArray[np.int64]) -> NDArray[V]:
    """Return decisions, `[agents, days, ...]`, shifted later around the span: `[shifts, agents, days, ...]`."""
    days = np.arange(values.shape[1])
    return np.moveaxis(values[:, (days - shifts[:, None]) % len(days)], 0, 1)


def play_shifted(
    decided: DecidedTrades | Values, known: Prices, dates: NDArray[np.datetime64], config: Config, most: int
) -> MatchedTraders:
    """Return the returns of the agents' decisions shifted in time, to test their timing.

    Shifted decisions keep their exposure, their turnover and their correlation with earlier decisions, but not their
    timing against the prices. This can also judge an agent of one asset, which has nothing to choose among (a rotation
    test, as of Theiler and Prichard 1996, "Constrained-realization Monte-Carlo method for hypothesis testing", section
    2). A shifted trade's sale is due at a close, as many days after the decision as the agent's; a trade whose order is
    not filled at the new time is left out. Tradable assets get the weights of those not tradable then, in equal parts.

    The arguments are those of `play_matched_traders`; `most` is the largest number of shifts (`shifts_of`).
    """
    shifts = shifts_of(len(dates), config.trading, most)

    def batches(cells: int) -> Iterator[NDArray[np.int64]]:
        return (shifts[part] for part in batch_slices(len(shifts), cells))

    if isinstance(decided, DecidedTrades):
        made, agents = decided.with_a_trade(), len(decided.asset)
        trades = (_shift_trades(made, len(dates), known, config.trading, part) for part in batches(_values_of(made)))
        return MatchedTraders(_earnings(trades, agents, known, dates, config), _SHIFTS)
    tradable = known.tradable[: len(dates)].cpu().numpy()
    weights = (_shift_weights(decided, tradable, part) for part in batches(decided.size))
    return MatchedTraders(_earnings(weights, len(decided), known, dates, config), _SHIFTS)


def _shift_trades(
    trades: DecidedTrades, days: int, known: Prices, trading: TradingConfig, shifts: NDArray[np.int64]
) -> DecidedTrades:
    fills, day = known.fills(trading), (trades.day + shifts[:, None, None]) % days
    filled = (trades.asset >= 0) & ~np.isnan(fills.entry.cpu().numpy()[day[..., None], np.maximum(trades.asset, 0)])
    due_day = np.where(filled, day[..., None] + trades.due_day(fills) - trades.day[..., None], -1)
    return _trades_at_close(day, np.where(filled, trades.asset, -1), due_day, trades.coefficient, known, trading)


def _shift_weights(weights: Values, tradable: NDArray[np.bool_], shifts: NDArray[np.int64]) -> Values:
    moved = _shift(weights, shifts)
    lost = np.where(tradable, 0.0, moved).sum(axis=-1, keepdims=True)
    return np.where(tradable, moved + lost / np.maximum(tradable.sum(axis=1, keepdims=True), 1), 0.0)
