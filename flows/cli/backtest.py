"""The command `eigen backtest`: what agents of a run would have earned in money, beside baselines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.units import change, percent, ratio
from flows.cli.common import Agent, Json, RunName, Slice, Store, sentences, store_of
from flows.cli.output import PlainTable, excess_document, print_fact, print_line, print_result

if TYPE_CHECKING:
    import pandas as pd

    from eigen_core.account.figures import Figures
    from eigen_core.judging.backtests import Backtest

BACKTEST_EXAMPLES = """[bold]Examples[/]

  eigen backtest first                                     the champion on the holdout
  eigen backtest first --slice validation --agent ensemble
  eigen backtest first --slice 2015-01-01:2016-12-31 --set account.shares=whole --set account.capital=20000

Every look at days that no agent was trained on is counted, for good: the verdict takes the count into account.
"""
_BASELINES = ("cash", "equal_weight", "rebalanced", "momentum", "reversal", "initial_population")
_COMPARED = ("total_return", "sharpe", "max_drawdown")


@sentences
def backtest(
    name: RunName,
    span: Slice = None,
    agent: Agent = "champion",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the account. May be repeated.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the tables.", show_default="in the run's folder", metavar="FOLDER")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what agents would have earned in money over a span of days, beside baselines and random traders."""
    from eigen_core.common.progress import progress_to
    from eigen_core.judging.backtests import backtest as play
    from eigen_core.judging.backtests import write_backtest
    from eigen_core.store.files import require_place
    from flows.cli.display import display_on

    if out is not None:
        # Before the look at these days, which is counted.
        require_place(out / "equity.csv")
    with display_on(Console(stderr=True)) as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            found = play(store_of(store), name, span=span, agent=agent, settings=assignments or ())
    folder = out or found.folder
    write_backtest(found, folder)
    print_result(as_json, backtest_document, print_backtest, found, folder)


def backtest_document(found: "Backtest", folder: Path) -> dict[str, Any]:  # noqa: ARG001 - what is printed has it
    """Return what `eigen backtest --json` prints. Its keys are a contract."""
    figures, excess, matched = found.figures, found.excess, found.matched
    trades, verdict = found.trades, found.verdict
    return {
        "run": found.run,
        "agent": found.agent,
        "slice": found.span,
        "first": str(found.curve.dates[0]),
        "last": str(found.curve.dates[-1]),
        "days": len(found.curve.dates),
        "capital": found.curve.capital,
        "final": float(found.curve.equity[-1]),
        "total_return": figures.total_return,
        "cagr": figures.cagr,
        "periods_per_year": found.periods_per_year,
        "volatility": figures.volatility,
        "sharpe": figures.sharpe,
        "sharpe_interval": verdict.sharpe_interval,
        "max_drawdown": figures.max_drawdown,
        "longest_drawdown_days": figures.longest_drawdown_days,
        "exposure": float(found.curve.exposure.mean()),
        "turnover": figures.turnover,
        "trades": len(trades),
        "win_rate": _won(trades),
        "costs": float(found.curve.costs.sum()),
        **excess_document(excess),
        "looks": verdict.looks,
        "warnings": list(found.looks.warnings),
        "deflated_sharpe": verdict.deflated_sharpe,
        "baselines": {
            **{name: _compared(found.figures_of_baselines[name]) for name in _BASELINES},
            "matched_random": {
                "median": matched.median_return,
                "quantile_of_agent": matched.quantile_of(figures.total_return),
                "draws": len(matched.total_returns),
            },
        },
        "timing": {
            "median": found.timing.median_return,
            "quantile_of_agent": found.timing.quantile_of(figures.total_return),
            "shifts": len(found.timing.total_returns),
            "pvalue": verdict.timing_pvalue,
            "judged_by_it": found.by_timing,
        },
        "verdict": {"claim": verdict.claim, "sentence": verdict.sentence},
    }


def _won(trades: "pd.DataFrame") -> float | None:
    """Return the share of the trades with a gain; None without trades, or where rows are single orders."""
    return float((trades["gain"] > 0.0).mean()) if len(trades) and "exit" in trades else None


def _compared(figures: "Figures") -> dict[str, float | None]:
    return {name: getattr(figures, name) for name in _COMPARED}


def print_backtest(console: Console, found: "Backtest", folder: Path) -> None:
    """Print the account beside the baselines, what it did, and where its tables are."""
    curve, figures, matched = found.curve, found.figures, found.matched
    who = f"{found.agent} ({found.agents} agents)" if found.agents > 1 else _called(found.agent)
    print_line(
        console,
        (f"{who} of run {found.run}, generation {found.generation}, {curve.dates[0]} to {curve.dates[-1]}", "bold"),
        f" ({found.span}, {len(curve.dates):,} days)",
    )
    print_line(console, found.verdict.sentence[0].upper(), found.verdict.sentence[1:])
    table = PlainTable("account", "return", "Sharpe", "deepest drawdown", "end", left=("account",))
    rows = {
        who: (figures, curve),
        **{name: (found.figures_of_baselines[name], held) for name, held in found.baselines.items()},
    }
    for name, (of_it, held) in rows.items():
        table.add_row(
            name.replace("_", " "),
            f"{change(100.0 * of_it.total_return, 1)} %",
            "–" if of_it.sharpe is None else ratio(of_it.sharpe),
            percent(of_it.max_drawdown),
            f"{held.equity[-1]:,.0f}",
        )
    table.print(console)
    quantile, median = matched.quantile_of(figures.total_return), matched.median_return
    if quantile is not None and median is not None:
        print_fact(
            console,
            "matched",
            f"{len(matched.total_returns):,} {matched.description}: median "
            f"{change(100.0 * median, 1)} %; {percent(quantile, 0)} of them earn less",
        )
    if not found.by_timing:
        _print_timing(console, found)
    trades = found.trades
    share = _won(trades)
    won = "" if share is None else f", {percent(share, 0)} with a gain"
    print_fact(
        console,
        "trades",
        f"{len(trades):,}{won}; costs {curve.costs.sum():,.0f}; turnover {figures.turnover:.1f} a year",
    )
    if found.excess is not None:
        market = "all assets on the same days" if found.excess.per == "trade" else "equal weight of the same exposure"
        if found.by_timing:
            market = "buying on any day" if found.excess.per == "trade" else "the same exposure on all days"
        print_fact(console, "excess", f"{found.excess} beyond {market}")
    print_fact(console, "a year", f"{found.periods_per_year} days of trading, by which figures are annualised")
    print_fact(console, "tables", str(folder))


def _print_timing(console: Console, found: "Backtest") -> None:
    timing, own = found.timing, found.figures.total_return
    quantile, median = timing.quantile_of(own), timing.median_return
    if quantile is None or median is None:
        return
    print_fact(
        console,
        "timing",
        f"{len(timing.total_returns):,} {timing.description}: median {change(100.0 * median, 1)} %; "
        f"{percent(quantile, 0)} of them earn less, by luck {percent(found.verdict.timing_pvalue)}",
    )


def _called(agent: str) -> str:
    return agent if agent == "champion" else f"agent {agent}"
