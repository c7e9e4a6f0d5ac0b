"""The report of a sweep with cross-validation: whether choosing was worth anything, paths, and trials, on one page."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from eigen_core.common.errors import InputError
from eigen_core.common.files import require_place, write_file
from eigen_core.common.text import count, number, percent, ratio
from eigen_core.judging.choice import Choice
from eigen_core.judging.cross_validation import Paths
from eigen_core.judging.sweeps import Sweep, TrialResult, load_sweep
from eigen_core.reporting.report import HEADLINES, UNDEFINED, Fact, options_of, page, rows_table, settings_of
from eigen_core.reporting.report_plots import equity_plot, plot
from eigen_core.reporting.style import BLUE, CHAMPION, MUTED
from eigen_core.trading.equity import EquityCurve, Values

_MOST_DRAWN = 30
_BEST, _EQUAL = "Best trial", "Equal weight (held)"


def write_sweep_report(store: str, name: str, file: Path) -> Choice:
    """Write the report of a sweep to an HTML file; return what its choice was worth.

    Raises:
        InputError: there is no such sweep, it has no cross-validation, or no finished trial; `file` cannot be written.
        StoreUnavailableError: the store does not answer.
    """
    require_place(file)
    sweep, results = load_sweep(store, name)
    choice = Choice.among(results, sweep.definition.config.seed)
    if choice is None:
        raise InputError(
            f"Sweep '{name}' has no finished trial of a cross-validation to report: `eigen sweep {name}` prints its "
            "table; begin one with --cv, or continue this one."
        )
    write_file(file, sweep_page(sweep, results, choice).encode())
    return choice


def sweep_page(sweep: Sweep, results: Sequence[TrialResult], choice: Choice) -> str:
    finished = [(one, one.paths) for one in results if one.paths is not None]
    best = next(paths for one, paths in finished if one is choice.best)
    config = sweep.definition.config
    capital = config.account.capital
    curves = {_BEST: _grown(capital, best, best.agent), _EQUAL: _grown(capital, best, best.equal_weight)}
    context = {
        "title": f"{HEADLINES[choice.claim]}: {sweep.name}",
        "sweep": sweep.name,
        "shape": _shape(sweep, results),
        "days": f"{best.dates[0]} to {best.dates[-1]}, {count(len(best.dates), 'tested bar')}",
        "headline": HEADLINES[choice.claim],
        "claim": choice.claim,
        "sentences": choice.sentences,
        "figures": _facts(choice, best),
        "paths": _paths_plot(finished[:_MOST_DRAWN]),
        "left_out": len(finished) > _MOST_DRAWN,
        "equity": equity_plot(curves, {_BEST: CHAMPION, _EQUAL: BLUE}),
        "best": choice.best.number,
        "trials": rows_table("Trials", [_row(one, choice, sweep) for one in results], _NUMBERS),
        "settings": rows_table(
            "Settings of all trials", [{"Setting": one.key, "Value": one.value} for one in settings_of(config)]
        ),
        "commands": [_command(sweep), shlex.join(["eigen", "report", sweep.name])],
    }
    return page("sweep.html", context)


def _grown(capital: float, paths: Paths, returns: Values) -> EquityCurve:
    """Return the account that grows by the mean of the paths' returns; only its equity is known."""
    equity: Values = capital * np.cumprod(1.0 + returns.mean(axis=0))
    unknown = np.full_like(equity, np.nan)
    return EquityCurve(paths.dates, capital, equity, unknown, unknown, unknown)


def _shape(sweep: Sweep, results: Sequence[TrialResult]) -> str:
    folds = sweep.definition.cross_validation
    assert folds is not None
    finished = sum(one.value is not None for one in results)
    tested = f", {folds.tested} of them tests" if folds.kind == "cpcv" else ""
    first, *others = sweep.definition.objectives
    front = f"; of the Pareto front of {', '.join((first, *others))} the best by {first}" if others else ""
    return (
        f"{count(len(results), 'trial')}, {finished} finished; {folds.kind} of {folds.groups} groups{tested}: "
        f"{count(len(sweep.splits), 'split')}, {count(len(folds.paths), 'path')}, "
        f"{count(sweep.definition.seeds, 'seed')}{front}"
    )


def _facts(choice: Choice, best: Paths) -> list[Fact]:
    sharpes, equal = best.sharpes(best.agent), best.sharpes(best.equal_weight)
    beyond = best.sharpes(best.beyond)
    overfitting = UNDEFINED if choice.overfitting is None else percent(choice.overfitting.probability, 0)
    deflated = UNDEFINED if choice.deflated is None else percent(choice.deflated)
    return [
        Fact("PBO", overfitting, "probability of backtest overfitting; 50 % is chance"),
        Fact("Deflated Sharpe", deflated, f"{count(choice.trials, 'trial')}, correlation {choice.correlation:.2f}"),
        Fact(
            "Sharpe of the best", _range(sharpes), f"paths of trial {choice.best.number}; equal weight {_range(equal)}"
        ),
        Fact("Beyond equal weight", _range(beyond), "Sharpe of the paths, at the same exposure"),
        Fact(
            "Record needed",
            UNDEFINED if choice.needed is None else f"{choice.needed:,}",
            f"bars to tell its Sharpe from 0; tested {choice.bars:,}",
        ),
        Fact("Not to be told apart", f"{len(choice.equals)} of {choice.trials}", "model confidence set, 95 %"),
    ]


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return ratio(low) if low == high else f"{ratio(low)} to {ratio(high)}"


_COLUMNS = ("Sharpe", "Equal weight", "Growth a year", "Beyond equal weight")
_NUMBERS = frozenset(_COLUMNS)


def _row(one: TrialResult, choice: Choice, sweep: Sweep) -> dict[str, str]:
    values = {key: number(value) if isinstance(value, float) else value for key, value in one.settings.items()}
    settings = ", ".join(f"{key}={value}" for key, value in values.items())
    paths = one.paths
    figures = [UNDEFINED] * 4
    if paths is not None:
        growth = float(np.mean(paths.growth(paths.agent)))
        figures = [
            _range(paths.sharpes(paths.agent)),
            _range(paths.sharpes(paths.equal_weight)),
            percent(growth),
            _range(paths.sharpes(paths.beyond)),
        ]
    among = "yes" if one.number in choice.equals else "no"
    several = len(sweep.definition.objectives) > 1
    return {
        "Trial": str(one.number),
        "State": one.state,
        **dict(zip(_COLUMNS, figures, strict=True)),
        "Like the best": UNDEFINED if paths is None else among,
        **({"Pareto front": "yes" if one.front else "no"} if several else {}),
        "Settings": settings or "–",
    }


def _paths_plot(trials: Sequence[tuple[TrialResult, Paths]]) -> object:
    def draw(axes: Axes) -> None:
        for place, (_, paths) in enumerate(trials):
            axes.plot(paths.sharpes(paths.equal_weight), [place] * len(paths.agent), "|", color=MUTED, markersize=13.0)
            axes.plot(paths.sharpes(paths.agent), [place] * len(paths.agent), "o", color=BLUE, markersize=5.0)
        axes.axvline(0.0, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(trials)), [f"trial {one.number}" for one, _ in trials])
        axes.set_ylim(len(trials) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)

    label = "Sharpe ratios of the paths: " + "; ".join(
        f"trial {one.number} {_range(paths.sharpes(paths.agent))}" for one, paths in trials
    )
    return plot("paths", label, draw, height=60 + 24 * len(trials), margins=(76, 24))


def _command(sweep: Sweep) -> str:
    definition, folds = sweep.definition, sweep.definition.cross_validation
    assert folds is not None
    shape = ["--cv", folds.kind]
    if folds.kind == "cpcv":
        shape += ["--groups", str(folds.groups), "--test-groups", str(folds.tested)]
    else:
        shape += ["--folds", str(len(folds.tests))]
    shape += ["--seeds", str(definition.seeds)]
    shape += [part for objective in definition.objectives for part in ("--objective", objective)]
    varied = [part for key in definition.space for part in ("--vary", f"{key}=…")]
    return shlex.join(["eigen", "sweep", sweep.name, *shape, *options_of(definition.config), *varied])
