"""Cross-validation of the trials of a sweep: splits, what champions earn on test groups, and paths of all bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import ArrowInvalid

from eigen_core.checkpoint.store_location import open_store, own_folder
from eigen_core.common.errors import InputError
from eigen_core.common.files import open_regular_file, write_file
from eigen_core.config import Config
from eigen_core.config.loading import changed, parse_assignments
from eigen_core.config.model import CheckpointConfig
from eigen_core.config.registry import has_prices
from eigen_core.generation.state import resolve_device
from eigen_core.judging.backtest import backtest_class
from eigen_core.judging.run_backtests import agents_on_market, config_to_judge
from eigen_core.judging.statistics import Values, sharpe_ratio
from eigen_core.machine.performance import computing_threads
from eigen_core.market import build_panel
from eigen_core.market.cross_validation import group_bounds, paths_of, splits_of
from eigen_core.market.formats import dates_of
from eigen_core.market.panel import Splits
from eigen_core.runs.evaluation_log import keep_look
from eigen_core.runs.handle import Run
from eigen_core.trading.equity import daily_rates, periods_per_year

Kind = Literal["cpcv", "kfold", "walk"]
Objective = Literal["score", "sharpe", "growth", "excess"]
_NUMBERS = ("agent", "equal_weight", "beyond")
_TABLE = ("date", "group", *_NUMBERS)
_MOST_BYTES = 1 << 26
_RUIN = -0.9999


def sweep_folder(checkpoint: CheckpointConfig) -> Path:
    """Return the folder of studies (`NAME.db`), of their runs' logs, and of what champions earn in tests."""
    return own_folder(checkpoint.store, checkpoint.local, ".sweeps")


@dataclass(frozen=True)
class Split:
    """A training of a trial: `number`, from 0, the test groups, and settings `key=value` of its runs."""

    number: int
    tests: tuple[int, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class CrossValidation:
    """How the bars of a sweep are divided into groups, and which of them test the champion of each split.

    Attributes:
        kind: `cpcv`, every choice of `tested` groups; `kfold`, every group alone; `walk`, every group but the first
            alone, and only bars before it are trained on (so does scikit-learn's `TimeSeriesSplit`).
    """

    kind: Kind
    groups: int
    tested: int

    @classmethod
    def of(cls, kind: Kind, groups: int, tested: int) -> Self:
        """Return it; raise `InputError` if no split has both a group to train and one to test, or splits are too many.

        Only `cpcv` has more than one test group.
        """
        made = cls(kind, groups, tested if kind == "cpcv" else 1)
        splits_of(groups, made.tested)
        return made

    @property
    def tests(self) -> Sequence[tuple[int, ...]]:
        """The test groups of each split."""
        return splits_of(self.groups, self.tested)[1 if self.kind == "walk" else 0 :]

    @property
    def paths(self) -> Sequence[Mapping[int, int]]:
        """For each path, the number of the split that plays each tested group, by group."""
        if self.kind == "walk":
            return [{group: split for split, (group,) in enumerate(self.tests)}]
        return [dict(enumerate(path)) for path in paths_of(self.groups, self.tested)]

    def splits(self, config: Config, dates: NDArray[np.datetime64], holdout: range) -> list[Split]:
        """Return the splits of the bars before the holdout of the sweep's panel; `dates`: those of all its bars."""
        stop = holdout.start
        if holdout:
            # The evaluation log counts days: a test on the holdout's first day would be a look at it.
            days = dates_of(dates)
            stop = int(np.searchsorted(days, days[stop]))
        bounds = group_bounds(stop, self.groups)
        last, purge = str(dates[stop - 1]), f"market.purge={config.market.purge}"
        if self.kind == "walk":
            return [
                Split(
                    number, tests, (purge, f"market.holdout={len(group)}", f"market.last_date={dates[group.stop - 1]}")
                )
                for number, tests in enumerate(self.tests)
                for group in [bounds[tests[0]]]
            ]
        shared = (purge, "market.holdout=0", f"market.last_date={last}", f"market.groups={self.groups}")
        return [
            Split(number, tests, (*shared, f"market.test_groups={list(tests)}"))
            for number, tests in enumerate(self.tests)
        ]


def splits_of_sweep(config: Config, cross_validation: CrossValidation) -> list[Split]:
    """Return the splits for the prices of `config`.

    Raises `InputError` if its task has no prices, these are invalid, or a split leaves too few bars to train.
    """
    if not has_prices(config.task):
        raise InputError(f"Cross-validation divides bars of prices, and task {config.task} has none: leave --cv out.")
    panel = build_panel(config)[0]
    splits = cross_validation.splits(config, panel.dates, panel.splits.holdout)
    for split in splits:
        of_split = changed(config, parse_assignments(split.settings))
        last = np.datetime64(of_split.market.last_date)
        Splits.of(panel.dates[panel.dates <= last], of_split.market).require(of_split)
    return splits


def play_tests(run: Run, split: Split) -> pd.DataFrame:
    """Let the champion of a finished run trade the test groups of its split, each with a new account.

    Returns a row a bar: its date or end, the number of its group, and returns (fractions): of the champion's account,
    of `equal_weight`, and of the account `beyond` equal weight at the exposure that it has before the bar; the rate
    without risk is subtracted from both. Each group is a look in the evaluation log. `InputError` and
    `StoreUnavailableError` as `backtest`.
    """
    config = config_to_judge(run)
    weights, _, panel = agents_on_market(run, config, "champion")
    store, tables = config.checkpoint.store, []
    with computing_threads(config.threads):
        market = backtest_class(config)(config, panel, resolve_device(config.device))
        for group, bars in zip(split.tests, panel.splits.tests or (panel.splits.holdout,), strict=True):
            # Agents decide once they can observe a whole window.
            span = range(max(bars.start, config.market.window - 1), bars.stop)
            agent, equal = market.curves(weights, span)
            rates = daily_rates(config.account.risk_free, agent.dates)
            earned, exposed = agent.returns - rates, np.concatenate([[0.0], agent.exposure[:-1]])
            beyond = earned - exposed * (equal.returns - rates)
            returns = {"agent": agent.returns, "equal_weight": equal.returns, "beyond": beyond}
            tables.append(pd.DataFrame({"date": agent.dates.astype("datetime64[s]"), "group": group, **returns}))
            days = str(agent.dates[0]), str(agent.dates[-1]), panel.symbols[: panel.assets]
            keep_look(open_store(store), run.name, config, days, weights, sharpe=sharpe_ratio(earned))
    return pd.concat(tables, ignore_index=True)


def kept_tests(file: Path, run: Run, split: Split) -> pd.DataFrame:
    """Return `play_tests` of a finished run, which is kept in a file and read again unless it is damaged."""
    if file.exists():
        try:
            with open_regular_file(file, follow=False) as opened:
                table = pd.read_parquet(BytesIO(opened.read(_MOST_BYTES)), columns=list(_TABLE))
            known = np.isfinite(table[list(_NUMBERS)].to_numpy(np.float64)).all()
            if known and tuple(table["group"].unique()) == split.tests:
                return table
        except (ArrowInvalid, KeyError, TypeError, ValueError):
            pass
    table = play_tests(run, split)
    write_file(file, table.to_parquet(index=False))
    return table


@dataclass(frozen=True, eq=False)
class Paths:
    """Returns on the joined test bars of a trial.

    Attributes:
        dates: of all tested bars, datetime64[s] `[bars]`, or of days datetime64[D].
        agent, equal_weight, beyond: float64 `[paths, bars]`, as in `play_tests`, of accounts that begin anew in each
            group; those of all seeds are paths.
        periods_per_year, risk_free: bars of a year; annual rate of interest without risk (a fraction).
    """

    dates: NDArray[np.datetime64]
    agent: Values
    equal_weight: Values
    beyond: Values
    periods_per_year: int
    risk_free: float

    @classmethod
    def of(cls, played: Sequence[Sequence[pd.DataFrame]], cross_validation: CrossValidation, config: Config) -> Self:
        """Join what champions earn; `played`: tables of `play_tests` for each seed and, in it, each split."""
        joined = [
            pd.concat([of_seed[split][of_seed[split]["group"] == group] for group, split in path.items()])
            for of_seed in played
            for path in cross_validation.paths
        ]
        agent, equal, beyond = (np.stack([path[name].to_numpy() for path in joined]) for name in _NUMBERS)
        dates = joined[0]["date"].to_numpy().astype("datetime64[s]")
        if (dates == (days := dates.astype("datetime64[D]"))).all():
            dates = days
        year = periods_per_year(dates, config.account)
        return cls(dates, agent, equal, beyond, year, config.account.risk_free)

    def sharpes(self, returns: Values) -> list[float]:
        """Return the annual Sharpe ratio of each path; 0 if its returns are constant."""
        rates, year = daily_rates(self.risk_free, self.dates), self.periods_per_year**0.5
        return [(sharpe_ratio(path - rates) or 0.0) * year for path in returns]

    def growth(self, returns: Values) -> list[float]:
        """Return the logarithmic growth of each path in a year."""
        years = len(self.dates) / self.periods_per_year
        growth: list[float] = (np.log1p(returns.clip(_RUIN)).sum(axis=1) / years).tolist()
        return growth

    def values(self, objective: Objective) -> list[float]:
        """Return the value of each path by an objective other than `score`."""
        if objective == "sharpe":
            return self.sharpes(self.agent)
        growth, equal = self.growth(self.agent), self.growth(self.equal_weight)
        return [one - other for one, other in zip(growth, equal, strict=True)] if objective == "excess" else growth
