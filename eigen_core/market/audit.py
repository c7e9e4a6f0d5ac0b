"""Audit a market: test whether a feature uses prices of later days (look-ahead), or correlates with later returns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from eigen_core.common.errors import InputError
from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import count
from eigen_core.config import Config
from eigen_core.config.registry import has_prices
from eigen_core.market.build import read_rows
from eigen_core.market.cleaning import clean_prices
from eigen_core.market.features import (
    FUTURES,
    SHUFFLED_DEVIATION,
    Future,
    LookAhead,
    PanelFeatures,
    Series,
    first_changes,
    first_of_each_feature,
)
from eigen_core.market.formats import in_unit, unit_of
from eigen_core.market.panel import Splits, normalise
from eigen_core.market.reading import find_source
from eigen_core.market.report import DataReport
from eigen_core.market.trading_days import PriceRows

LIMITS_OF_A_SYMBOL, LIMITS_OF_THE_MEAN = (0.2, 7.0), (0.1, 4.0)
"""Limits of the rank correlation of one symbol, and of the mean absolute one of all symbols: it is suspicious from the
first number on, and from as many standard errors on as the second (n overlapping h-day returns count as n / h)."""

_NORMALISED_TOLERANCE = 1e-6
_FEWEST_RETURNS, _FEWEST_SYMBOLS, _PARTS = 250, 5, 3
_LAST, _EXPLAINED = (1, 3, 10), 1e-6
_OUTCOMES = (
    "the return of the next {}",
    "the return of the next {} times the sign of the last day's",
    "the size of the return of the next {}, beyond that with the size of the return of as many days before",
    "the mean size of the returns of the next {}, each by itself, beyond that with the mean of as many days before",
)
"""What features are correlated with. Volatility lasts: honest features know sizes ahead no better than those behind."""


@dataclass(frozen=True)
class SuspectedLeak:
    """A feature whose rank correlation with an outcome of the next `horizon` rows (of `_OUTCOMES`) reaches `limit`.

    With `symbol` None, `correlation` is the mean absolute one of all symbols. `unit` is that of rows (`unit_of`).
    """

    feature: str
    symbol: str | None
    correlation: float
    limit: float
    horizon: int
    outcome: str
    first_day: str
    last_day: str
    unit: str

    def __str__(self) -> str:
        ahead = self.unit if self.horizon == 1 else count(self.horizon, self.unit)
        whose = f"{self.feature} has" if self.symbol is None else f"{self.feature} of {self.symbol} has"
        outcome = in_unit(self.outcome, self.unit)
        what = "a mean absolute rank correlation over all symbols" if self.symbol is None else "a rank correlation"
        return (
            f"{whose} {what} of {self.correlation:.2f} with {outcome.format(ahead)} from {self.first_day} to "
            f"{self.last_day}: features that are known at the close stay below {self.limit:.2f}."
        )


@dataclass(frozen=True)
class MarketAudit:
    """The result of an audit, which cut off and shuffled the prices after each of `days` (YYYY-MM-DD).

    `symbols` is the number of symbols; `found` lists prices and features that this changed on earlier days, `suspected`
    features that correlate with later returns; `unseen` says which look-ahead the correlations cannot show.
    """

    report: DataReport
    features: tuple[str, ...]
    symbols: int
    days: tuple[str, ...]
    found: tuple[LookAhead, ...]
    suspected: tuple[SuspectedLeak, ...]
    unseen: str

    @property
    def is_clean(self) -> bool:
        return not self.found and not self.suspected

    @property
    def unit(self) -> str:
        """What a row is called: a day or a bar."""
        return "bar" if self.report.bar_stamp else "day"


def audit_market(config: Config, days: int) -> MarketAudit:
    """Audit the features of `config.market` for look-ahead; `InputError` if the task has no prices or they are invalid.

    For each of `days` days (the last training day and random ones), later rows are cut off or shuffled, and features
    computed again: those that change on earlier days have look-ahead. Columns of the files do not change; only their
    correlation with the returns of the next 1 to `trading.holding_bars` days, before the holdout, can show look-ahead.
    """
    if not has_prices(config.task):
        raise InputError(f"The task {config.task} has no prices to audit: omit task, or set task=market.")
    market = config.market
    source = find_source(market)
    rows = read_rows(source, config)
    prices, report = clean_prices(rows, str(source.path), market.context, market.levels)
    splits = Splits.of(prices.days, market)
    splits.require(config)
    features = PanelFeatures(prices, market)
    # Days with a known price, except the last.
    first = max(int((~np.isnan(prices.close)).any(axis=1).argmax()), len(prices.days) // 10)
    others = [day for day in range(first, len(prices.days) - 1) if day != splits.train[-1]]
    drawn = keyed_generator(0, 0, "market", "audit", "days").permutation(others)[: days - 1]
    positions = sorted([splits.train[-1], *map(int, drawn)])
    findings: list[LookAhead] = []
    for done, position in enumerate(positions, 1):
        last = prices.days[position]
        for future in FUTURES:
            # No context symbols: they may have no price before `last`, and only trading distinguishes them.
            changed, _ = clean_prices(_rows_with_future(rows, last, future), "the remaining prices", (), market.levels)
            changes = _changes(features, PanelFeatures(changed, market), position, splits)
            for name, normalised, symbol, day in changes:
                if day >= 0:
                    files, dates = rows.files.get(symbol, ()), (str(prices.days[day]), str(last))
                    findings.append(LookAhead(name, normalised, symbol, files, *dates, future))
        report_progress("audit", done, len(positions))
    suspected, unseen = audit_correlations(features, range(splits.validation.stop), config.trading.holding_bars)
    return MarketAudit(
        report=replace(report, own_features=features.own_names, ignored_files=source.ignored, events=market.events),
        features=features.names,
        symbols=len(prices.symbols),
        days=tuple(str(prices.days[position]) for position in positions),
        found=first_of_each_feature(sorted(findings, key=lambda finding: finding.normalised)),
        suspected=suspected,
        unseen=unseen,
    )


def _rows_with_future(rows: PriceRows, last_known: np.datetime64, future: Future) -> PriceRows:
    if future == "cut off":
        return rows.between(None, str(last_known))
    generator = keyed_generator(0, 0, "market", "look-ahead", str(last_known))
    later = np.flatnonzero(rows.days > last_known)
    number = (rows.days[later] - last_known).astype(np.int64)
    # Duplicate rows of a symbol and day stay equal.
    key = rows.codes[later] * (number.max(initial=0) + 1) + number
    _, first, own = np.unique(key, return_index=True, return_inverse=True)
    taken = later[first][np.lexsort((generator.random(len(first)), rows.codes[later[first]]))]
    scale = np.exp(SHUFFLED_DEVIATION * generator.standard_normal(len(first)))

    def shuffled(values: Series) -> Series:
        changed = values.copy()
        changed[later] = (values[taken] * scale)[own]
        return changed

    prices = {role: shuffled(values) for role, values in rows.prices.items()}
    return replace(rows, prices=prices, own={name: shuffled(values) for name, values in rows.own.items()})


def _changes(
    before: PanelFeatures, after: PanelFeatures, last: int, splits: Splits
) -> Iterator[tuple[str, bool, str, int]]:
    """Yield each price or feature, whether normalised, symbol, index of the first changed day up to `last` (or -1)."""
    days, symbols, others = slice(0, last + 1), before.prices.symbols, after.prices.symbols
    columns = [others.index(symbol) if symbol in others else -1 for symbol in symbols]
    for name in ("open", "high", "low", "close"):
        one, other = (getattr(features.prices, name)[days] for features in (before, after))
        # `after` lacks symbols whose first price was cut off: the appended column of NaN stands for them.
        other = np.pad(other, ((0, 0), (0, 1)), constant_values=np.nan)[:, columns]
        changes = first_changes(one, other, 0.0)
        yield from ((name, False, symbol, day) for symbol, day in zip(symbols, changes, strict=True))
    # `after` lacks the feature `volume` if all volumes were cut off.
    names = [name for name in before.names if name in after.names]
    own, new = ([features.names.index(name) for name in names] for features in (before, after))
    for column, symbol in enumerate(others):
        changes = first_changes(before.of_column(symbols.index(symbol))[days, own], after.of_column(column)[days, new])
        yield from ((name, False, symbol, day) for name, day in zip(names, changes, strict=True))
    if last >= splits.train.stop - 1:
        rows = splits.training_rows
        grids = [normalise(features.all_columns(), features.shape, rows) for features in (before, after)]
        for column, symbol in enumerate(others):
            one, other = grids[0][days, symbols.index(symbol), own], grids[1][days, column, new]
            changes = first_changes(one, other, _NORMALISED_TOLERANCE)
            yield from ((name, True, symbol, day) for name, day in zip(names, changes, strict=True))


def audit_correlations(features: PanelFeatures, days: range, longest: int) -> tuple[tuple[SuspectedLeak, ...], str]:
    """Return the features with suspicious correlations with later returns, and what this test cannot show, as text.

    Returns are those of the next 1 to `longest` days with a price. Correlations are computed over all `days` (indices)
    and over each third of them, for symbols with at least 250 values there.
    """
    parts = [days, *(days[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(days)), _PARTS))]
    spans = [(str(features.prices.days[part[0]]), str(features.prices.days[part[-1]])) for part in parts]
    unit = unit_of(features.prices.days)
    found, numbers = _correlations(features, parts, longest)
    known, horizons = ~np.isnan(found[..., 0]), np.tile(np.arange(1, longest + 1), len(_OUTCOMES))
    count = known.sum(axis=1)[..., None]
    # `[parts, 1 + symbols, features, outcomes * horizons]`: first the mean of all symbols, then each symbol.
    means = np.abs(np.nan_to_num(found)).sum(axis=1) / np.maximum(count, 1)
    in_mean = _limits(numbers.sum(axis=1) / np.maximum(count[..., 0], 1), horizons, *LIMITS_OF_THE_MEAN)
    values = np.concatenate([means[:, None], found], axis=1)
    limits = np.concatenate([in_mean[:, None], _limits(numbers, horizons, *LIMITS_OF_A_SYMBOL)], axis=1)
    enough = np.concatenate([count[:, None] >= _FEWEST_SYMBOLS, known[..., None]], axis=1)
    share = np.where(enough, np.abs(np.nan_to_num(values)) / limits, 0.0)
    symbols, suspected = (None, *features.prices.symbols), []
    for feature, name in enumerate(features.names):
        part, symbol, tried = map(int, np.unravel_index(share[:, :, feature].argmax(), share[:, :, feature].shape))
        cell = part, symbol, feature, tried
        if share[cell] >= 1.0:
            sizes = float(values[cell]), float(limits[cell]), int(horizons[tried])
            outcome = _OUTCOMES[tried // longest]
            suspected.append(SuspectedLeak(name, symbols[symbol], *sizes, outcome, *spans[part], unit))
    return tuple(suspected), in_unit(_unseen(*spans[0], len(days), longest, tried=bool(known.any())), unit)


def _unseen(first: str, last: str, days: int, longest: int, tried: bool) -> str:
    if not tried:
        return (
            f"No symbol has {_FEWEST_RETURNS + 2 * longest} prices from {first} to {last}: columns of the data were "
            "not tested for look-ahead."
        )
    third, ends = days // _PARTS, np.array([1, longest])
    one, mean = (np.minimum(_limits(third, ends, *limits), 1.0) for limits in (LIMITS_OF_A_SYMBOL, LIMITS_OF_THE_MEAN))
    return (
        "Look-ahead of data columns, and of functions that read files, shows only in rank correlations with later "
        f"returns. The audit tested returns of the next 1 to {longest} days, with and without the sign of the last "
        f"day's, beyond those of the last {_LAST[0]}, {_LAST[1]} and {_LAST[2]} days, and their sizes against those of "
        f"as many days before, from {first} to {last} and in each third of these days. It misses look-ahead that "
        f"correlates less than {one[0]:.2f} (1 day) to {one[1]:.2f} ({longest} days) in each symbol and {mean[0]:.2f} "
        f"to {mean[1]:.2f} in the mean of {_FEWEST_SYMBOLS} or more, on fewer than about {round(one[0] * third):,} "
        f"days of a symbol, on returns that begin more than {longest} "
        "days later, or in the holdout."
    )


def _correlations(features: PanelFeatures, parts: Sequence[range], longest: int) -> tuple[Series, Series]:
    """Return rank correlations `[parts, symbols, features, outcomes * horizons]`, NaN with under 250 days, and numbers
    of days. Those with returns are partial ones, beyond the returns of `_LAST` days: closes of bars within a day bounce
    between bid and ask (Roll 1984, "A simple implicit measure of the effective bid-ask spread in an efficient market"),
    so that these tell a part of the next return. Those with sizes are absolute, less the absolute ones with sizes of
    days before, and at least 0.
    """
    log_close = np.log(features.prices.close)
    found = np.full((len(parts), *features.shape[1:], len(_OUTCOMES) * longest), np.nan)
    numbers = np.zeros(found.shape[:3])
    for column, values in enumerate(features.all_columns()):
        for part, days in enumerate(parts):
            own = days.start + np.flatnonzero(~np.isnan(log_close[days.start : days.stop, column]))
            if len(own) - 2 * longest < _FEWEST_RETURNS:
                continue
            last, outcomes = _outcomes(log_close[own, column], longest)
            own = own[longest:-longest]
            ranked: dict[bytes, tuple[Series, Series, Series]] = {}
            for feature, of_feature in enumerate(values[own].T):
                known = ~np.isnan(of_feature)
                if known.sum() < _FEWEST_RETURNS:
                    continue
                # Cached: most features are known on the same days, and ranking is most of the work.
                if known.tobytes() not in ranked:
                    values_known = last[known], *np.split(outcomes[known], [2 * longest], axis=1)
                    of_last, of_returns, of_sizes = map(_ranks, values_known)
                    for one in range(1, of_last.shape[1]):
                        of_last[:, one:] = _beyond(of_last[:, one - 1 : one], of_last[:, one:])
                    ranked[known.tobytes()] = of_last, _beyond(of_last, of_returns), of_sizes
                of_last, of_returns, of_sizes = ranked[known.tobytes()]
                of_feature = _ranks(of_feature[known, None])
                signed = _beyond(of_last, of_feature)[:, 0] @ of_returns
                ahead, behind = np.split(of_feature[:, 0] @ of_sizes, 2)
                found[part, column, feature] = [*signed, *np.maximum(np.abs(ahead) - np.abs(behind), 0.0)]
                numbers[part, column, feature] = known.sum()
    return found, numbers


def _outcomes(close: Series, longest: int) -> tuple[Series, Series]:
    """Return the returns of the `_LAST` days and the size of that of the last, `[days, 4]`, and `_OUTCOMES` over 1 to
    `longest` days, then the sizes over as many days before, `[days, 6 * longest]`, from log prices `close`; the first
    and the last `longest` days are left out."""
    daily = np.diff(close, prepend=close[0])
    path = np.cumsum(np.abs(daily))
    middle, horizons = np.arange(longest, len(close) - longest)[:, None], np.arange(1, longest + 1)
    ahead, behind = close[middle + horizons] - close[middle], close[middle] - close[middle - horizons]
    sizes = [
        np.abs(ahead),
        path[middle + horizons] - path[middle],
        np.abs(behind),
        path[middle] - path[middle - horizons],
    ]
    # An outcome is known in part from these without look-ahead.
    last = behind[:, np.minimum(_LAST, longest) - 1]
    return np.hstack([last, sizes[2][:, :1]]), np.hstack([ahead, ahead * np.sign(daily[middle]), *sizes])


def _beyond(known: Series, ranks: Series) -> Series:
    """Return the part of scaled `ranks` that orthonormal columns `known` do not explain, scaled alike; else zeros."""
    rest = ranks - known @ (known.T @ ranks)
    length = np.sqrt((rest**2).sum(axis=0))
    return np.asarray(np.divide(rest, length, out=np.zeros_like(rest), where=length > _EXPLAINED))


def _limits(numbers: Series | float, horizons: NDArray[np.int64], smallest: float, errors: float) -> Series:
    """Return the smallest suspicious correlations `[..., horizons]` for `numbers` of days `[...]`: at least `smallest`,
    and as many standard errors as `errors`. `benchmarks/audit.py` shows that no feature of prices reaches them."""
    error = np.sqrt(horizons / np.maximum(np.asarray(numbers, dtype=np.float64), 1.0)[..., None])
    return np.asarray(np.maximum(smallest, errors * error))


def _ranks(values: Series) -> Series:
    """Return the ranks of each column, scaled to mean 0 and norm 1; zeros if all its values are equal."""
    ranks = rankdata(values, axis=0)
    ranks -= ranks.mean(axis=0)
    length = np.sqrt((ranks**2).sum(axis=0))
    return np.asarray(np.divide(ranks, length, out=np.zeros_like(ranks), where=length > 0.0))
