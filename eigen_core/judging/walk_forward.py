"""Walk-forward tests (walks): train, validate, play the days that follow, move on by these days, and train again.

Each such step is a fold. It is trained with each seed as an ordinary run, whose holdout is the days that the fold
plays: no agent of a fold was trained or chosen on days that the fold plays. The folds' accounts are joined into one.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import JsonValue

from eigen_core.checkpoint.integrity import checksummed, parse_checksummed
from eigen_core.checkpoint.store import WALKS, MissingObjectError, Store, check_run_name
from eigen_core.checkpoint.store_location import open_store, own_folder
from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.config import BatchSamplingConfig, Config
from eigen_core.config.loading import changed
from eigen_core.config.registry import has_prices
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.judging.backtest import SpanResult, backtest_class
from eigen_core.judging.run_backtests import Backtest, backtest, config_to_judge, write_table
from eigen_core.judging.statistics import Values, interquartile_mean
from eigen_core.judging.verdicts import Verdict, verdict_on
from eigen_core.market import build_panel
from eigen_core.market.panel import Splits
from eigen_core.runs.handle import Run, require_same_definition, status_of
from eigen_core.trading.equity import EquityCurve, concat_curves, mean_curve

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Days:
    """Consecutive trading days, by first and last date as YYYY-MM-DD."""

    first: str
    last: str

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


@dataclass(frozen=True)
class Fold:
    """One step of a walk: `number`, from 1, and the days on which its agents are trained, are chosen and play."""

    number: int
    train: Days
    validation: Days
    played: Days


@dataclass(frozen=True)
class Walk:
    """A walk-forward test.

    Attributes:
        config: of all runs, except for dates and seed.
        folds: in the order of the days.
        train_bars: number of training bars of each fold; None: all bars before its validation.
        seeds: number of runs per fold; their seeds are consecutive, from `config.seed` on.
    """

    name: str
    config: Config
    folds: tuple[Fold, ...]
    train_bars: int | None
    seeds: int

    @property
    def all_seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.seeds)

    def run_of(self, fold: Fold, seed: int) -> str:
        return f"{self.name}-fold-{fold.number}-seed-{seed}"

    def config_of(self, fold: Fold, seed: int) -> Config:
        first = self.config.market.first_date if self.train_bars is None else fold.train.first
        market = {"first_date": first, "last_date": fold.played.last}
        return changed(self.config, {"market": market, "seed": seed})

    def runs(self) -> Iterator[tuple[str, Config]]:
        """Yield the name and the configuration of each run: fold by fold, seed by seed."""
        for fold in self.folds:
            for seed in self.all_seeds:
                yield self.run_of(fold, seed), self.config_of(fold, seed)

    def document(self) -> dict[str, JsonValue]:
        return {
            "config": stored_values(self.config),
            "train_days": self.train_bars,
            "seeds": self.seeds,
            "days": [[fold.train.first, fold.played.first, fold.played.last] for fold in self.folds],
        }


def plan_walk(
    name: str,
    config: Config,
    dates: NDArray[np.datetime64],
    folds: int,
    *,
    train_bars: int | None = None,
    seeds: int = 1,
) -> Walk:
    """Return a walk-forward test (see `Walk`) whose last fold plays the last days; each plays `market.holdout`.

    `dates` are those of the panel that `build_panel` makes of `config`, datetime64[D] `[days]`.

    Raises:
        InputError: the name cannot be used, or there are too few days.
    """
    check_run_name(name)
    market = config.market
    if not has_prices(config.task) or not market.holdout:
        raise InputError(
            "A walk plays market.holdout bars in each fold: choose a task with prices, and 1 holdout bar or more."
        )
    # Training needs a window, and after it an episode, or a batch of different bars.
    batch_bars = config.learner.batch_size if isinstance(config.learner, BatchSamplingConfig) else 1
    fewest = market.window + max(config.trading.episode_bars, batch_bars)
    if train_bars is not None and train_bars < fewest:
        raise InputError(
            f"--train-bars {train_bars}: with these settings a fold needs {fewest:,} bars or more to train."
        )
    planned: list[Fold] = []
    stop, trained = len(dates), train_bars or fewest
    while len(planned) < folds:
        splits = Splits.of(dates[:stop], market)
        if len(splits.train) < trained:
            raise InputError(
                f"--folds {folds}: {len(dates):,} bars are enough for {len(planned)}. The first fold needs {trained:,} "
                f"to train, {market.validation} of validation, {market.holdout} played, twice {market.purge} purged, "
                f"each fold after it {market.holdout} more: give more data, or lower --folds, --span or market.purge."
            )
        train = splits.train if train_bars is None else splits.train[-train_bars:]
        days = (Days(str(dates[of[0]]), str(dates[of[-1]])) for of in (train, splits.validation, splits.holdout))
        planned.append(Fold(folds - len(planned), *days))
        stop = splits.holdout.start
    return Walk(name, config, tuple(reversed(planned)), train_bars, seeds)


def with_purge(config: Config, purge: int | str | None) -> Config:
    """Return the configuration with `purge` unused bars before and after the validation.

    None: as many as a window (`market.window`) and the days after a decision that its reward depends on have together
    (without prices a window only), so that no two splits observe or trade the same day.
    """
    traded = backtest_class(config).outcome_days(config.trading) if has_prices(config.task) else 0
    bars = config.market.window + traded if purge is None else purge
    return changed(config, {"market": {"purge": bars}})


def folder_of(walk: Walk) -> Path:
    checkpoint = walk.config.checkpoint
    return own_folder(checkpoint.store, checkpoint.local, f"{WALKS}{walk.name}")


def save_walk(walk: Walk) -> None:
    """Write the definition of a walk to the store.

    Raises:
        InputError: the store cannot be used, or a walk of this name has another definition.
        StoreUnavailableError: the store does not answer.
    """
    if not open_store(walk.config.checkpoint.store).create(_document_name(walk.name), checksummed(walk.document())):
        require_same_walk(walk)


def require_same_walk(walk: Walk) -> None:
    """Raise the errors of `save_walk`, if the store has this walk with another definition or fails; write nothing."""
    store, now = open_store(walk.config.checkpoint.store), walk.document()
    if store.stat(_document_name(walk.name)) is None:
        return
    stored = _stored_definition(store, walk.name)
    named = {"train_days": "--train-bars", "seeds": "--seeds"}
    options = [option for key, option in named.items() if stored[key] != now[key]]
    if stored["days"] != now["days"]:
        options.append("the days of its folds")
    require_same_definition(f"Walk '{walk.name}'", config_from_stored(stored["config"]), walk.config, options)


def is_walk(store: str, name: str) -> bool:
    return open_store(store).stat(_document_name(check_run_name(name))) is not None


def walks_in(store: str) -> list[str]:
    below = (found.name.removeprefix(WALKS) for found in open_store(store).objects(WALKS))
    return sorted(name.removesuffix(".json") for name in below if "/" not in name and name.endswith(".json"))


def load_walk(store: str, name: str, settings: Iterable[str] = ()) -> Walk:
    """Return a finished walk of a store; `settings` as in `backtest`.

    Raises:
        InputError: there is no such walk, a run of it is not finished, or the prices have other days now.
        StoreUnavailableError: the store does not answer.
    """
    stored = _stored_definition(open_store(store), name)
    config, folds = config_from_stored(stored["config"]), len(stored["days"])
    # The first run's settings have this machine's path of the prices, and the champions' account.
    own = config_to_judge(Run.open(store, f"{name}-fold-1-seed-{config.seed}"), settings)
    reading = {key: getattr(own.market, key) for key in ("data", "layout", "suspicious", "events")}
    config = config.model_copy(
        update={
            "market": config.market.model_copy(update=reading),
            "account": own.account,
            "checkpoint": own.checkpoint,
        }
    )
    dates = build_panel(config)[0].dates
    # The prices may have new days after the walk.
    dates = dates[dates <= np.datetime64(stored["days"][-1][-1])]
    walk = plan_walk(name, config, dates, folds, train_bars=stored["train_days"], seeds=stored["seeds"])
    if walk.document()["days"] != stored["days"]:
        raise InputError(f"Walk '{name}' was started with prices of other days: restore the earlier prices.")
    for run, _ in walk.runs():
        if status_of(store, run).state != "finished":
            raise InputError(f"Walk '{name}' is not finished: its run '{run}' is not. Run the same `eigen walk` again.")
    return walk


def _document_name(name: str) -> str:
    return f"{WALKS}{name}.json"


def _stored_definition(store: Store, name: str) -> Mapping[str, Any]:
    document = _document_name(name)
    try:
        return parse_checksummed(store.read(document, _MOST_BYTES))
    except MissingObjectError as error:
        raise InputError(f"There is no walk '{name}' in {store.url}: start one with `eigen walk {name}`.") from error
    except ValueError as error:
        raise InputError(
            f"{document} in {store.url} {error}: restore a copy of this file, or delete it and run the same "
            "`eigen walk` again, which keeps its runs."
        ) from error


@dataclass(frozen=True)
class FoldResult:
    """Backtest of the champion of `run`, which was trained for `fold` with `seed`, on the days that the fold plays."""

    fold: Fold
    seed: int
    run: str
    played: Backtest


@dataclass(frozen=True, kw_only=True)
class WalkResult(SpanResult):
    """Earnings of a walk's champions, one per fold and seed. A seed's account is carried from fold to fold.

    `curve` is the mean of the seeds' accounts, as if each had an equal share of the capital. `curves`: the account of
    each seed over all folds, with the full capital. `played` has the folds seed by seed, in the order of their days.
    """

    walk: Walk
    played: Sequence[FoldResult]
    curves: Mapping[int, EquityCurve]

    def of_seed(self, seed: int) -> list[Backtest]:
        return [one.played for one in self.played if one.seed == seed]

    @cached_property
    def interquartile(self) -> tuple[float, float, float]:
        """Interquartile mean of the seeds' total returns (fractions), then the bounds of its 95 % interval."""
        returns = np.array([curve.equity[-1] / curve.capital - 1.0 for curve in self.curves.values()])
        return interquartile_mean(returns, self.walk.config.seed)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on `curve`, corrected for the looks (results in the evaluation log) at the fold with the most."""
        return verdict_on(self, self.walk.config, looks=max(one.played.looks.count for one in self.played))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that are shown if the evaluation log is damaged; they are the same for all folds."""
        return self.played[-1].played.looks.warnings


def play_walk(walk: Walk) -> WalkResult:
    """Join the results of `backtest` for the champion of each run of a trained walk on the days of its fold."""
    store = walk.config.checkpoint.store
    played = [
        FoldResult(fold, seed, walk.run_of(fold, seed), backtest(store, walk.run_of(fold, seed), span="holdout"))
        for seed in walk.all_seeds
        for fold in walk.folds
    ]
    seeds = [[one.played for one in played if one.seed == seed] for seed in walk.all_seeds]
    every = [one.played for one in played]
    first, last = every[0], every[-1]
    curves = [concat_curves([one.curve for one in spans]) for spans in seeds]
    baselines = {
        name: mean_curve([concat_curves([one.baselines[name] for one in spans]) for spans in seeds])
        for name in first.baselines
    }
    matched, timing = (
        replace(found[0], total_returns=_joined_returns([one.total_returns for one in found], len(seeds)))
        for found in ([one.matched for one in every], [one.timing for one in every])
    )
    weights = [pd.concat([one.weights for one in spans]) for spans in seeds if first.weights is not None]
    active = [one.active_share for one in every if one.active_share is not None]
    return WalkResult(
        walk=walk,
        played=played,
        curves=dict(zip(walk.all_seeds, curves, strict=True)),
        curve=mean_curve(curves),
        trades=pd.concat([one.trades for one in every], ignore_index=True),
        interest=sum(one.interest for one in every),
        one_portfolio=False,
        baselines=baselines,
        matched=matched,
        excess=pool_excess([[one.excess for one in spans] for spans in seeds]),
        alpha=pool_excess([[one.alpha for one in spans] for spans in seeds]),
        holding_bars=first.holding_bars,
        periods_per_year=last.periods_per_year,
        risk_free=walk.config.account.risk_free,
        timing=timing,
        baskets=first.baskets,
        weights=sum(weights[1:], weights[0]) / len(weights) if weights else None,
        active_share=float(np.mean(active)) if active else None,
        by_timing=first.by_timing,
    )


def _joined_returns(returns: Sequence[Values], seeds: int) -> Values:
    """Return total returns of random traders over all folds, averaged over seeds: the folds' n-th traders are one.

    `returns`: those of each fold's traders, float64 `[draws]`, seed by seed; folds with fewer traders repeat theirs.
    """
    most = max(map(len, returns)) if all(map(len, returns)) else 0
    grown = np.array([1.0 + np.resize(one, most) for one in returns])
    joined: Values = grown.reshape(seeds, -1, most).prod(axis=1).mean(axis=0) - 1.0
    return joined


def pool_excess(seeds: Sequence[Sequence[Excess | None]]) -> Excess | None:
    """Pool the excess of folds over their trades or days; None if no fold has one; `seeds`: the folds' excess by seed.

    Over the folds of a seed, whose days differ, squared standard errors add up. Over seeds, which trade on the same
    days, standard errors add up, as if fully correlated; so degrees of freedom add up over folds, and not over seeds.
    """
    means, errors, trades = 0.0, 0.0, 0
    every = [[one for one in spans if one is not None] for spans in seeds]
    for known in every:
        means += sum(one.mean * one.trades for one in known)
        errors += sum((one.standard_error * one.trades) ** 2 for one in known) ** 0.5
        trades += sum(one.trades for one in known)
    if not trades:
        return None
    per = next(one.per for known in every for one in known)
    freedom = min(sum(one.freedom or math.inf for one in known) for known in every if known)
    return Excess(
        mean=means / trades,
        standard_error=errors / trades,
        freedom=freedom if math.isfinite(freedom) else None,
        trades=trades,
        per=per,
    )


def write_walk(result: WalkResult) -> Path:
    """Write equity and folds as CSV and Parquet, and return their folder; may raise `InputError`."""
    folder = folder_of(result.walk)
    write_table(walk_equity_table(result), folder / "equity")
    write_table(pd.DataFrame([fold_row(one) for one in result.played]), folder / "folds")
    return folder


def walk_equity_table(result: WalkResult) -> pd.DataFrame:
    """Return one row a day: date, fold, equity (money); then the equity by seed as `seed_N`, and of each baseline."""
    first_seed = result.of_seed(result.walk.config.seed)
    days = [np.full(len(played.curve.dates), number) for number, played in enumerate(first_seed, 1)]
    return pd.DataFrame(
        {
            "date": result.curve.dates.astype("datetime64[s]"),
            "fold": np.concatenate(days),
            "equity": result.curve.equity,
            **{f"seed_{seed}": curve.equity for seed, curve in result.curves.items()},
            **{name: curve.equity for name, curve in result.baselines.items()},
        }
    )


def fold_row(one: FoldResult) -> dict[str, str | int | float | None]:
    """Return a row for a fold and seed: dates, returns of champion and baselines (fractions), excess (%)."""
    played, excess = one.played, one.played.excess
    return {
        "fold": one.fold.number,
        "seed": one.seed,
        "run": one.run,
        "trained_to": one.fold.train.last,
        "first": one.fold.played.first,
        "last": one.fold.played.last,
        "total_return": played.metrics.total_return,
        "equal_weight": played.baseline_metrics["equal_weight"].total_return,
        "matched_median": played.matched.median_return,
        "quantile_of_agent": played.matched.quantile_of(played.metrics.total_return),
        "excess_mean": None if excess is None else excess.mean,
        "excess_standard_error": None if excess is None else excess.standard_error,
        "trades": len(played.trades),
    }
