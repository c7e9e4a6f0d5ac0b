"""Results of walk-forward tests (`Walk`): the folds' accounts joined into one account, with tables and a plot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.records import Excess
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.run_backtests import Backtest, backtest, write_table
from eigen_core.judging.statistics import interquartile_mean
from eigen_core.judging.verdicts import Verdict, verdict_on
from eigen_core.judging.walk_forward import Fold, Walk, folder_of
from eigen_core.reporting.report_plots import BASELINE_COLOURS, NAMES, draw_equity
from eigen_core.reporting.style import CHAMPION, figure_file, footnote
from eigen_core.trading.equity import EquityCurve, concat_curves, mean_curve

Values = NDArray[np.float64]


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
        holding_days=first.holding_days,
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
    """Write equity and folds as CSV and Parquet, and equity.png, and return their folder; may raise `InputError`."""
    folder = folder_of(result.walk)
    write_table(equity_table(result), folder / "equity")
    write_table(pd.DataFrame([fold_row(one) for one in result.played]), folder / "folds")
    _plot_equity(result, folder / "equity.png")
    return folder


def equity_table(result: WalkResult) -> pd.DataFrame:
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


# Letters that fit into the line under the title.
_SUBTITLE_LETTERS = 118


def _plot_equity(result: WalkResult, path: Path) -> None:
    subtitle = result.verdict.sentence.split(";")[0]
    subtitle = subtitle if len(subtitle) <= _SUBTITLE_LETTERS else f"{subtitle[:_SUBTITLE_LETTERS].rsplit(' ', 1)[0]} …"
    shown = {"Champions": result.curve, **{NAMES[name]: curve for name, curve in result.baselines.items()}}
    colours = {"Champions": CHAMPION, **{NAMES[name]: BASELINE_COLOURS[name] for name in result.baselines}}
    with figure_file(path, "Walk forward", subtitle) as figure:
        axes = figure.add_axes((0.07, 0.13, 0.68, 0.70))
        draw_equity(axes, shown, colours, [fold.played.last for fold in result.walk.folds])
        footnote(figure, "Dotted: the last day of a fold. The next is played by a champion that was trained later.")
