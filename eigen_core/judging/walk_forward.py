"""Walk-forward tests (walks): train, validate, play the days that follow, move on by these days, and train again.

Each such step is a fold. It is trained with each seed as an ordinary run, whose holdout is the days that the fold
plays: no agent of a fold was trained or chosen on days that the fold plays.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from eigen_core.checkpoint.integrity import checksummed, parse_checksummed
from eigen_core.checkpoint.store import WALKS, MissingObjectError, Store, check_run_name
from eigen_core.checkpoint.store_location import open_store, own_folder
from eigen_core.common.errors import InputError
from eigen_core.config import BatchSamplingConfig, Config, merge
from eigen_core.config.loading import config_from_values
from eigen_core.config.registry import has_prices
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.judging.backtest import outcome_days
from eigen_core.judging.run_backtests import config_to_judge
from eigen_core.market import build_panel
from eigen_core.market.panel import Splits
from eigen_core.runs.handle import Run, require_same_definition, status_of

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
        train_days: number of training days of each fold; None: all days before its validation.
        seeds: number of runs per fold; their seeds are consecutive, from `config.seed` on.
    """

    name: str
    config: Config
    folds: tuple[Fold, ...]
    train_days: int | None
    seeds: int

    @property
    def all_seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.seeds)

    def run_of(self, fold: Fold, seed: int) -> str:
        return f"{self.name}-fold-{fold.number}-seed-{seed}"

    def config_of(self, fold: Fold, seed: int) -> Config:
        first = self.config.market.first_date if self.train_days is None else fold.train.first
        market = {"first_date": first, "last_date": fold.played.last}
        return config_from_values(merge(self.config.model_dump(), {"market": market, "seed": seed}))

    def runs(self) -> Iterator[tuple[str, Config]]:
        """Yield the name and the configuration of each run: fold by fold, seed by seed."""
        for fold in self.folds:
            for seed in self.all_seeds:
                yield self.run_of(fold, seed), self.config_of(fold, seed)

    def document(self) -> dict[str, JsonValue]:
        return {
            "config": stored_values(self.config),
            "train_days": self.train_days,
            "seeds": self.seeds,
            "days": [[fold.train.first, fold.played.first, fold.played.last] for fold in self.folds],
        }


def plan_walk(
    name: str,
    config: Config,
    dates: NDArray[np.datetime64],
    folds: int,
    *,
    train_days: int | None = None,
    seeds: int = 1,
) -> Walk:
    """Return a walk-forward test whose last fold plays the last days.

    Args:
        name, train_days, seeds: see `Walk`.
        config: of its runs; each fold plays `market.holdout_days` days.
        dates: datetime64[D] `[days]`, days of prices: the dates of the panel that `build_panel` makes of `config`.
        folds: number of folds.

    Raises:
        InputError: the name cannot be used, or there are too few days.
    """
    check_run_name(name)
    market = config.market
    if not has_prices(config.task) or not market.holdout_days:
        raise InputError(
            "A walk plays market.holdout_days days in each fold: choose a task with prices, and 1 holdout day or more."
        )
    # Training needs a window, and after it an episode, or a batch of different days.
    batch_days = config.learner.batch_size if isinstance(config.learner, BatchSamplingConfig) else 1
    fewest = market.window + max(config.trading.episode_days, batch_days)
    if train_days is not None and train_days < fewest:
        raise InputError(
            f"--train-days {train_days}: with these settings a fold needs {fewest:,} days or more to train."
        )
    trained = train_days or fewest
    days, days_of_first = len(dates), trained + market.days_after_training
    most = max(0, (days - days_of_first) // market.holdout_days + 1)
    if folds > most:
        raise InputError(
            f"--folds {folds}: {days:,} days are enough for {most}. The first fold needs {days_of_first:,} "
            f"({trained:,} to train, {market.validation_days} of validation, {market.holdout_days} played, twice "
            f"{market.purge_days} purged), each fold after it {market.holdout_days} more: give more data, or lower "
            "--folds, --span-days or market.purge_days."
        )
    planned = []
    for number in range(1, folds + 1):
        stop = days - (folds - number) * market.holdout_days
        start = 0 if train_days is None else stop - days_of_first
        splits = Splits.of_days(stop - start, market)
        train, validation, played = (
            Days(str(dates[start + split[0]]), str(dates[start + split[-1]]))
            for split in (splits.train, splits.validation, splits.holdout)
        )
        planned.append(Fold(number, train, validation, played))
    return Walk(name, config, tuple(planned), train_days, seeds)


def with_purge(config: Config, purge_days: int | None) -> Config:
    """Return the configuration with `purge_days` unused days before and after the validation.

    None: as many as a window (`market.window`) and the days after a decision that its reward depends on have together
    (without prices a window only), so that no two splits observe or trade the same day.
    """
    traded = outcome_days(config) if has_prices(config.task) else 0
    days = config.market.window + traded if purge_days is None else purge_days
    return config_from_values(merge(config.model_dump(), {"market": {"purge_days": days}}))


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
    options = [f"--{key.replace('_', '-')}" for key in ("train_days", "seeds") if stored[key] != now[key]]
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
    walk = plan_walk(name, config, dates, folds, train_days=stored["train_days"], seeds=stored["seeds"])
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
