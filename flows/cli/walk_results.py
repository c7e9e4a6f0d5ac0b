"""What the command walk prints: its folds, the joined account beside baselines, and the verdict."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eigen_core.units import percent
from flows.cli.output import PlainTable, excess_document, print_fact, print_line
from flows.cli.report import print_figures

if TYPE_CHECKING:
    from eigen_core.account.figures import Figures
    from eigen_core.reporting.walks import WalkResult

_COMPARED = ("total_return", "sharpe", "max_drawdown")


def walk_document(result: "WalkResult", folder: Path) -> dict[str, Any]:
    """Return what `eigen walk --json` prints. Its keys are a contract."""
    from eigen_core.reporting.walks import fold_row

    figures, excess, verdict = result.figures, result.excess, result.verdict
    mean, low, high = result.interquartile
    return {
        "walk": result.walk.name,
        "first": str(result.curve.dates[0]),
        "last": str(result.curve.dates[-1]),
        "days": len(result.curve.dates),
        "folds": [fold_row(one) for one in result.played],
        "seeds": [
            {"seed": seed, **_compared(result.figures_of(curve)), "final": float(curve.equity[-1])}
            for seed, curve in result.curves.items()
        ],
        "interquartile_mean": {"total_return": mean, "interval": [low, high]},
        "capital": result.curve.capital,
        "final": float(result.curve.equity[-1]),
        **_compared(figures),
        "cagr": figures.cagr,
        "periods_per_year": result.periods_per_year,
        "volatility": figures.volatility,
        "sharpe_interval": None if verdict.sharpe_interval is None else list(verdict.sharpe_interval),
        **excess_document(excess),
        "looks": verdict.looks,
        "warnings": list(result.warnings),
        "deflated_sharpe": verdict.deflated_sharpe,
        "baselines": {
            **{name: _compared(result.figures_of(curve)) for name, curve in result.baselines.items()},
            "matched_random": {
                "median": result.matched_median,
                "quantile_of_agent": result.matched_quantile,
                "draws": len(result.matched_returns),
            },
        },
        "verdict": {"claim": verdict.claim, "sentence": verdict.sentence},
        "tables": str(folder),
    }


def _compared(figures: "Figures") -> dict[str, float | None]:
    return {name: getattr(figures, name) for name in _COMPARED}


def print_walk(console: Console, result: "WalkResult", folder: Path) -> None:
    """Print the verdict, the folds, the joined account beside baselines, and where the tables are."""
    from eigen_core.reporting.walks import fold_row

    print_line(console, (result.verdict.sentence, "bold"))
    per = "trade" if result.excess is None else result.excess.per
    table = PlainTable(
        *("fold", "seed", "trained to", "plays", "champion", "equal weight", "quantile", f"excess a {per}", "trades"),
        left=("plays",),
        least_important=("trained to", "trades", "seed"),
    )
    for one in result.played:
        row, excess = fold_row(one), one.played.excess
        quantile = one.played.matched.quantile_of(one.played.figures.total_return)
        table.add_row(
            str(one.fold.number),
            str(one.seed),
            one.fold.train.last,
            str(one.fold.played),
            percent(one.played.figures.total_return, 2),
            percent(one.played.figures_of_baselines["equal_weight"].total_return, 2),
            "–" if quantile is None else percent(quantile, 0),
            "–" if excess is None else excess.short,
            str(row["trades"]),
        )
    table.print(console)
    accounts = {"champions": result.curve, **result.baselines}
    figures = {name: result.figures_of(curve) for name, curve in accounts.items()}
    print_figures(console, "account", accounts, {**figures, "champions": result.figures})
    if result.walk.seeds > 1:
        mean, low, high = result.interquartile
        print_fact(
            console,
            "seeds",
            f"interquartile mean of {result.walk.seeds} total returns {percent(mean, 2)}, 95 % interval "
            f"{percent(low, 2)} to {percent(high, 2)}",
        )
    print_fact(console, "tables", str(folder))
