"""Result of a walk: earnings of its champions, joined into one account, and the verdict on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.records import Excess
from eigen_core.judging.backtests import Backtest, backtest, write_table
from eigen_core.judging.statistics import interquartile_mean
from eigen_core.judging.verdicts import Evidence, Verdict, judge
from eigen_core.judging.walks import Fold, Walk, folder_of
from eigen_core.reporting.report import NAMES
from eigen_core.reporting.report_plots import colour_of, draw_equity
from eigen_core.reporting.style import CHAMPION, figure_file, footnote
from eigen_core.trading import EquityCurve
from eigen_core.trading.equity import concat_curves, daily_rates, mean_curve
from eigen_core.trading.metrics import Metrics, compute_metrics

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PlayedFold:
    """A fold that the champion of one seed has played."""

    fold: Fold
    seed: int
    run: str
    played: Backtest


@dataclass(frozen=True)
class WalkResult:
    """Result of a walk.

    Attributes:
        walk: what was trained.
        played: its folds, seed by seed, in the order of the days.
    """

    walk: Walk
    played: Sequence[PlayedFold]

    def of_seed(self, seed: int) -> list[Backtest]:
        """Return the backtests of a seed, in the order of the days."""
        return [one.played for one in self.played if one.seed == seed]

    @cached_property
    def curves(self) -> Mapping[int, EquityCurve]:
        """The joined account of each seed."""
        seeds = self.walk.all_seeds
        return {seed: concat_curves([played.curve for played in self.of_seed(seed)]) for seed in seeds}

    @cached_property
    def curve(self) -> EquityCurve:
        """The joined account with an equal share of the capital for each seed."""
        return mean_curve(list(self.curves.values()))

    @cached_property
    def baselines(self) -> Mapping[str, EquityCurve]:
        """Joined baselines by name, each as it is played in each fold; those that depend on the seed are shared too."""
        names = self.played[0].played.baselines
        return {name: mean_curve([self._baseline(name, seed) for seed in self.walk.all_seeds]) for name in names}

    def _baseline(self, name: str, seed: int) -> EquityCurve:
        return concat_curves([played.baselines[name] for played in self.of_seed(seed)])

    @cached_property
    def matched_returns(self) -> Values:
        """Total returns of matched random traders over all folds, float64 `[draws]`: draw by draw, as the account."""
        return self._together([played.played.matched.total_returns for played in self.played])

    @cached_property
    def timing_returns(self) -> Values:
        """Total returns of the same decisions at other times over all folds, float64 `[shifts]`."""
        return self._together([played.played.timing.total_returns for played in self.played])

    def _together(self, returns: Sequence[Values]) -> Values:
        """Return what draws earn over all folds, the mean over the seeds; a fold with fewer of them repeats them."""
        most = max(map(len, returns)) if all(map(len, returns)) else 0
        grown = np.array([1.0 + np.resize(one, most) for one in returns])
        together: Values = grown.reshape(len(self.walk.all_seeds), -1, most).prod(axis=1).mean(axis=0) - 1.0
        return together

    @property
    def matched_median(self) -> float:
        """Median of the total returns of the matched random traders."""
        return float(np.median(self.matched_returns))

    @property
    def matched_quantile(self) -> float:
        """Share of the matched random traders that earned less, half of those that earned as much."""
        own, others = self.figures.total_return, self.matched_returns
        return float((others < own).mean() + (others == own).mean() / 2.0)

    @cached_property
    def excess(self) -> Excess | None:
        """Excess over the market; folds are independent, seeds of a fold as if they were the same."""
        return pooled([[played.excess for played in self.of_seed(seed)] for seed in self.walk.all_seeds])

    @cached_property
    def alpha(self) -> Excess | None:
        """Part of the excess that the market's own gain does not explain; pooled as the excess is."""
        return pooled([[played.alpha for played in self.of_seed(seed)] for seed in self.walk.all_seeds])

    @property
    def benchmark(self) -> str:
        """The baseline that figures and alpha are against."""
        return self.played[0].played.baskets[0]

    @cached_property
    def weights(self) -> pd.DataFrame | None:
        """Mean of the seeds' weights at each close; None where agents make trades."""
        seeds = [[played.weights for played in self.of_seed(seed)] for seed in self.walk.all_seeds]
        joined = [pd.concat([one for one in spans if one is not None]) for spans in seeds if spans[0] is not None]
        return sum(joined[1:], joined[0]) / len(joined) if joined else None

    @property
    def periods_per_year(self) -> int:
        """Days of trading a year, by the last fold."""
        return self.played[-1].played.periods_per_year

    @cached_property
    def figures(self) -> Metrics:
        """Figures of the joined account, against the first of the baskets."""
        return self.compute_metrics(self.curve, self.baselines[self.benchmark])

    def compute_metrics(self, curve: EquityCurve, benchmark: EquityCurve | None = None) -> Metrics:
        """Return the figures of an account of this walk."""
        risk_free = self.walk.config.account.risk_free
        return compute_metrics(curve, benchmark, periods_per_year=self.periods_per_year, risk_free=risk_free)

    @cached_property
    def interquartile(self) -> tuple[float, float, float]:
        """Interquartile mean of the seeds' total returns, with its 95 % interval; see `interquartile_mean`."""
        returns = np.array([curve.equity[-1] / curve.capital - 1.0 for curve in self.curves.values()])
        return interquartile_mean(returns, self.walk.config.seed)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the joined account; looks are those at the fold that was looked at most."""
        config = self.walk.config
        first = self.played[0].played
        active = [one.played.active_share for one in self.played if one.played.active_share is not None]
        return judge(
            Evidence(
                returns=self.curve.returns,
                baselines={name: curve.returns for name, curve in self.baselines.items()},
                baskets=first.baskets,
                total_return=self.figures.total_return,
                matched_returns=self.matched_returns,
                excess=self.excess,
                alpha=self.alpha,
                holding_days=first.holding_days,
                looks=max(one.played.looks.count for one in self.played),
                periods_per_year=self.periods_per_year,
                risk_free=daily_rates(config.account.risk_free, self.curve.dates),
                seed=config.seed,
                matched_description=first.matched.description,
                active_share=float(np.mean(active)) if active else None,
                timing_returns=self.timing_returns,
                by_timing=first.by_timing,
            )
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Errors of the evaluation log, in sentences; the same for all folds."""
        return self.played[-1].played.looks.warnings


def pooled(seeds: Sequence[Sequence[Excess | None]]) -> Excess | None:
    """Return the excess of all trades, or days, together; None without any.

    Standard errors of a seed's spans, whose days differ, add up as squares; those of seeds, which trade on the same
    days, as they are: they count as fully related. So degrees of freedom add up over spans, and not over seeds.

    Args:
        seeds: of each seed, of each span.
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


def play_walk(walk: Walk) -> WalkResult:
    """Let the champions of a walk that is trained play its folds.

    Raises:
        InputError: a run is not finished, or its data are not those that it was trained on.
        StoreUnavailableError: the store does not answer.
    """
    store = walk.config.checkpoint.store
    played = [
        PlayedFold(fold, seed, walk.run_of(fold, seed), backtest(store, walk.run_of(fold, seed), span="holdout"))
        for seed in walk.all_seeds
        for fold in walk.folds
    ]
    return WalkResult(walk, played)


def write_walk(result: WalkResult) -> Path:
    """Write the joined accounts and the folds as CSV and Parquet, and the plot; return their folder on this machine.

    Raises:
        InputError: they cannot be written.
    """
    folder = folder_of(result.walk)
    write_table(equity_table(result), folder / "equity")
    write_table(folds_table(result), folder / "folds")
    accounts = {"champion": result.curve, **result.baselines}
    ends = [fold.played.last for fold in result.walk.folds]
    plot_walk(accounts, ends, result.verdict.sentence, folder / "equity.png")
    return folder


def equity_table(result: WalkResult) -> pd.DataFrame:
    """Return the joined accounts day by day (money): date, fold, equity, each seed's, then each baseline's."""
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


def folds_table(result: WalkResult) -> pd.DataFrame:
    """Return a row for each fold and seed: its dates, and what champion and baselines earned, as fractions."""
    return pd.DataFrame([fold_row(one) for one in result.played])


def fold_row(one: PlayedFold) -> dict[str, str | int | float | None]:
    """Return what is said of a fold that was played."""
    played, excess = one.played, one.played.excess
    return {
        "fold": one.fold.number,
        "seed": one.seed,
        "run": one.run,
        "trained_to": one.fold.train.last,
        "first": one.fold.played.first,
        "last": one.fold.played.last,
        "total_return": played.figures.total_return,
        "equal_weight": played.figures_of_baselines["equal_weight"].total_return,
        "matched_median": played.matched.median_return,
        "quantile_of_agent": played.matched.quantile_of(played.figures.total_return),
        "excess_mean": None if excess is None else excess.mean,
        "excess_standard_error": None if excess is None else excess.standard_error,
        "trades": len(played.trades),
    }


# Letters that fit into the line under the title.
_STORY = 118


def plot_walk(curves: Mapping[str, EquityCurve], ends: Sequence[str], verdict: str, path: Path) -> Path:
    """Write the equity of a walk, on a logarithmic axis.

    Args:
        curves: the champions' account, then baselines by name.
        ends: last date that each fold plays, as YYYY-MM-DD.
        verdict: in a sentence, of which the first part is shown.
        path: PNG file.
    """
    story = verdict.split(";")[0]
    story = story if len(story) <= _STORY else f"{story[:_STORY].rsplit(' ', 1)[0]} …"
    first, *others = curves
    shown = {"Champions": curves[first], **{NAMES[name]: curves[name] for name in others}}
    colours = {"Champions": CHAMPION, **{NAMES[name]: colour_of(name, 0) for name in others}}
    with figure_file(path, "Walk forward", story) as figure:
        axes = figure.add_axes((0.07, 0.13, 0.68, 0.70))
        draw_equity(axes, shown, colours, ends)
        footnote(figure, "Dotted: the last day of a fold. The next is played by a champion that was trained later.")
    return path
