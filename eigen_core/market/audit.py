"""The audit of a market's data: each feature of each symbol is tried for look-ahead, from the rows of the files on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.config.choices import has_prices
from eigen_core.errors import InputError
from eigen_core.market.build import read_rows
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.days import PriceRows
from eigen_core.market.files import find_source
from eigen_core.market.look_ahead import (
    FUTURES,
    Future,
    LookAhead,
    changed_prices,
    first_changes,
    gathered,
    rows_with_future,
)
from eigen_core.market.normalisation import normalised
from eigen_core.market.panel import Splits
from eigen_core.market.panel_features import PanelFeatures
from eigen_core.market.report import DataReport
from eigen_core.market.return_correlation import TriedCorrelations, try_correlations
from eigen_core.progress import report_progress
from eigen_core.randomness import keyed_generator

_NORMALISED_TOLERANCE = 1e-6


@dataclass(frozen=True)
class MarketAudit:
    """What the audit tried and found.

    Attributes:
        report: on the data.
        features: names of the features.
        symbols: number of symbols.
        days: the days after which the future was cut off, then shuffled, as YYYY-MM-DD.
        found: look-ahead, one finding a feature.
        correlations: of features with later returns, and those that know too much, though nothing shows how.
    """

    report: DataReport
    features: tuple[str, ...]
    symbols: int
    days: tuple[str, ...]
    found: tuple[LookAhead, ...]
    correlations: TriedCorrelations

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.found and not self.correlations.suspected


def audit_market(config: Config, days: int) -> MarketAudit:
    """Audit the market that `config.market` describes.

    Args:
        config: which prices and features, and which days train.
        days: after how many days the future is cut off and shuffled: the last training day, and random ones.

    The rows of the files are cut off or shuffled, then cleaned, and features are computed and normalised as for a
    panel: all of it is tried, but the reading of the files. Columns of the data are what they are in the rows: whether
    they were known on their evening shows at most in their correlation with returns up to `trading.holding_days` later,
    on the days before those held out.

    Raises:
        InputError: the prices or a feature cannot be used, or there are too few days.
    """
    if not has_prices(config.task):
        raise InputError(f"The task {config.task} has no prices to audit: leave task out, or give task=market.")
    market = config.market
    source = find_source(market.data, market.symbol_from)
    rows = read_rows(source, market)
    prices, report = clean_prices(rows, str(source.path), market.context, market.first_date, market.last_date)
    config.require_days(len(prices.days))
    features = PanelFeatures.of(prices, market)
    splits = Splits.of_days(len(prices.days), market)
    tried = _Tried(rows, prices, features, splits.train, rows.files)
    positions = _positions(prices, tried.train, days)
    findings: list[LookAhead] = []
    for done, position in enumerate(positions, 1):
        for future in FUTURES:
            findings += tried.findings(position, future)
        report_progress("audit", done, len(positions))
    return MarketAudit(
        report=replace(report, own_features=features.own_names),
        features=features.names,
        symbols=len(prices.symbols),
        days=tuple(str(prices.days[position]) for position in positions),
        found=gathered(sorted(findings, key=lambda finding: finding.normalised)),
        correlations=try_correlations(features, range(splits.validation.stop), config.trading.holding_days),
    )


@dataclass(frozen=True)
class _Tried:
    """What is tried: the rows, the prices and features of them, training days, names of each symbol's files."""

    rows: PriceRows
    prices: CleanPrices
    features: PanelFeatures
    train: range
    files: dict[str, tuple[str, ...]]

    def findings(self, position: int, future: Future) -> Iterator[LookAhead]:
        """Give what changes up to the day at `position` when later ones are cut off or shuffled."""
        rows = rows_with_future(self.rows, self.prices.days[position], future, 0)
        market = self.features.market
        # A symbol of the context may begin later: whether it can be traded is no matter here.
        prices, _ = clean_prices(rows, "what was left of the prices", (), market.first_date, market.last_date)
        features = PanelFeatures.of(prices, market)
        changes = [*changed_prices(self.prices, prices, position + 1), *self._raw(features, position + 1)]
        for name, symbol, day in changes:
            yield self._finding(name, False, symbol, day, position, future)
        if position >= self.train.stop - 1:
            for name, symbol, day in self._normalised(features, position + 1):
                yield self._finding(name, True, symbol, day, position, future)

    def _raw(self, features: PanelFeatures, days: int) -> Iterator[tuple[str, str, int]]:
        names, own, others = self._shared(features)
        for column, symbol in enumerate(features.prices.symbols):
            before = self.features.of_column(self.prices.symbols.index(symbol))[:days, own]
            changes = first_changes(before, features.of_column(column)[:days, others])
            yield from ((name, symbol, int(day)) for name, day in zip(names, changes, strict=True) if day >= 0)

    def _normalised(self, features: PanelFeatures, days: int) -> Iterator[tuple[str, str, int]]:
        names, own, others = self._shared(features)
        before, after = (_normalised(each, self.train)[:days] for each in (self.features, features))
        for column, symbol in enumerate(features.prices.symbols):
            one, other = before[:, self.prices.symbols.index(symbol), own], after[:, column, others]
            changed = np.abs(one - other) > _NORMALISED_TOLERANCE
            for name, of_feature in zip(names, changed.T, strict=True):
                if of_feature.any():
                    yield name, symbol, int(of_feature.argmax())

    def _shared(self, features: PanelFeatures) -> tuple[tuple[str, ...], list[int], list[int]]:
        """Return the features that both have, and their positions: without later volumes there may be none at all."""
        names = tuple(name for name in self.features.names if name in features.names)
        return (
            names,
            [self.features.names.index(name) for name in names],
            [features.names.index(name) for name in names],
        )

    def _finding(
        self, name: str, is_normalised: bool, symbol: str, day: int, position: int, future: Future
    ) -> LookAhead:
        dates = self.prices.days
        files = self.files.get(symbol, ())
        return LookAhead(name, is_normalised, symbol, files, str(dates[day]), str(dates[position]), future)


def _normalised(features: PanelFeatures, train: range) -> NDArray[np.float32]:
    days, columns = features.prices.close.shape
    return normalised(features.of_column, days, columns, len(features.names), train, lambda _: None)


def _positions(prices: CleanPrices, train: range, days: int) -> list[int]:
    """Return the days after which the future is changed: the last of training, and random ones that have a past."""
    first = max(int((~np.isnan(prices.close)).any(axis=1).argmax()), len(prices.days) // 10)
    others = [day for day in range(first, len(prices.days) - 1) if day != train.stop - 1]
    drawn = keyed_generator(0, 0, "market", "audit", "days").permutation(others)[: days - 1]
    return sorted([train.stop - 1, *map(int, drawn)])
