"""The commands that judge agents in money: backtest, compare, report and act."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.text import change, count, money, percent, ratio
from flows.cli.common import Agent, Json, RunName, Slice, Store, sentences, store_of
from flows.cli.output import PlainTable, excess_document, print_fact, print_line, print_result

if TYPE_CHECKING:
    import pandas as pd

    from eigen_core.judging.act import Act, Reconciliation
    from eigen_core.judging.backtests import Backtest
    from eigen_core.reporting.compare import WrittenComparison
    from eigen_core.reporting.reports import WrittenReport
    from eigen_core.trading import EquityCurve
    from eigen_core.trading.metrics import Figures

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


COMPARE_EXAMPLES = """[bold]Examples[/]

  eigen compare first second
  eigen compare first second --slice validation --out comparison.html
"""

_SHOWN_DIFFERENCES = 20


@sentences
def compare(
    names: Annotated[list[str], typer.Argument(help="Names of the runs.", metavar="NAME NAME...")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[Path | None, typer.Option(help="HTML file with the curves to write.", metavar="FILE")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show runs side by side on the same days, and the settings in which they differ."""
    from eigen_core.common.progress import progress_to
    from eigen_core.reporting.compare import write_comparison
    from flows.cli.display import display_on

    with display_on(Console(stderr=True)) as display, progress_to(display):
        display.waiting_for("reading the data")
        written = write_comparison(store_of(store), names, span=span, agent=agent, file=out)
    print_result(as_json, comparison_document, print_comparison, written)


def print_comparison(console: Console, written: "WrittenComparison") -> None:
    """Print verdicts and figures of runs, and the settings in which they differ."""
    compared = written.compared
    for run, sentence in compared.sentences.items():
        print_line(console, (f"{run}: ", "bold"), sentence)
    curves = {name: curve for name, (curve, _) in compared.accounts.items()}
    figures = {name: found for name, (_, found) in compared.accounts.items()}
    first, last = (next(iter(curves.values())).dates[day] for day in (0, -1))
    print_line(console, f"{compared.span}, {first} to {last}")
    print_figures(console, "run", curves, figures)
    if not compared.differences:
        print_line(console, "The runs have the same settings.")
    else:
        table = PlainTable("setting", *compared.curves, left=("setting", *compared.curves))
        for key, values in list(compared.differences.items())[:_SHOWN_DIFFERENCES]:
            table.add_row(key, *values.values())
        table.print(console)
        if len(compared.differences) > _SHOWN_DIFFERENCES:
            more = len(compared.differences) - _SHOWN_DIFFERENCES
            print_line(console, f"{more} more differ; --json and --out have them all.")
    if written.file is not None:
        print_fact(console, "page", str(written.file))


def comparison_document(written: "WrittenComparison") -> dict[str, Any]:
    """Return what `eigen compare --json` prints. Its keys are a contract."""
    compared = written.compared
    first, last = (str(next(iter(compared.curves.values())).dates[day]) for day in (0, -1))
    return {
        "slice": compared.span,
        "first": first,
        "last": last,
        "file": None if written.file is None else str(written.file),
        "periods_per_year": compared.periods_per_year,
        "risk_free": compared.risk_free,
        "runs": {
            run: {
                "capital": curve.capital,
                "final": float(curve.equity[-1]),
                "figures": asdict(compared.figures[run]),
                "verdict": {"claim": compared.claims[run], "sentence": compared.sentences[run]},
                "benchmark": _benchmark(compared.own_benchmarks.get(run, compared.benchmark)),
            }
            for run, curve in compared.curves.items()
        },
        "benchmark": _benchmark(compared.benchmark),
        "warnings": list(compared.warnings),
        "differences": compared.differences,
    }


def _benchmark(known: "tuple[str, EquityCurve, Figures] | None") -> dict[str, Any] | None:
    return None if known is None else {"name": known[0], "figures": asdict(known[2])}


REPORT_EXAMPLES = """[bold]Examples[/]

  eigen report first
  eigen report first --slice 2012-01-03:2013-12-31 --agent 3 --out agent-3.html
  eigen report years                       the joined account of a walk and its folds
"""

_UNDEFINED = "–"


@sentences
def report(
    name: Annotated[str, typer.Argument(help="Name of the run, or of the walk.", metavar="NAME")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write.", show_default="NAME-report.html", metavar="FILE")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write what a run or a walk would have earned, and whether to believe it, into one HTML file that can be sent."""
    from eigen_core.common.progress import progress_to
    from eigen_core.reporting.reports import is_report_of_walk, write_report, write_walk_report
    from flows.cli.display import display_on
    from flows.server.reporter import publish

    where = store_of(store)
    of_walk = is_report_of_walk(where, name, span=span, agent=agent)
    file = Path(f"{name}-report.html") if out is None else out
    with display_on(Console(stderr=True)) as display, progress_to(display):
        display.waiting_for("reading the data")
        if of_walk:
            written = write_walk_report(where, name, file)
        else:
            written = write_report(where, name, span=span, agent=agent, file=file)
    print_result(as_json, report_document, print_report, replace(written, artifact=publish(written)))


def print_report(console: Console, written: "WrittenReport") -> None:
    """Print the verdict, the figures of agent and baselines, and where the report is."""
    report = written.report
    print_line(console, (report.sentence, "bold"))
    print_line(console, f"{report.run}, {report.agent}: {report.span}, {report.first} to {report.last}")
    curves = {"agent": report.curve, **report.baselines}
    print_figures(console, "account", curves, {"agent": report.figures, **report.baseline_figures})
    print_fact(console, "report", str(written.file))
    if written.artifact:
        print_fact(console, "in Prefect", f"{written.artifact}")


def report_document(written: "WrittenReport") -> dict[str, Any]:
    """Return what `eigen report --json` prints. Its keys are a contract."""
    report = written.report
    return {
        "run": report.run,
        "agent": written.agent,
        "slice": report.span,
        "first": report.first,
        "last": report.last,
        "days": len(report.curve.dates),
        "folds": [{"fold": fold.name, "first": str(fold.first), "last": str(fold.last)} for fold in report.folds],
        "file": str(written.file),
        "artifact": written.artifact,
        "periods_per_year": report.periods_per_year,
        "risk_free": report.risk_free,
        "figures": asdict(report.figures),
        "baselines": {name: asdict(figures) for name, figures in report.baseline_figures.items()},
        "verdict": {"claim": report.claim, "sentence": report.sentence},
        "warnings": list(report.warnings),
    }


def print_figures(
    console: Console, heading: str, curves: Mapping[str, "EquityCurve"], figures: Mapping[str, "Figures"]
) -> None:
    """Print figures of accounts, one row each.

    Args:
        console: where to.
        heading: what the accounts are.
        curves: by name.
        figures: of the same accounts.
    """
    table = PlainTable(
        heading,
        "final",
        "total return",
        "CAGR",
        "Sharpe",
        "max drawdown",
        "turnover",
        "beta",
        left=(heading,),
        least_important=("turnover", "CAGR", "beta"),
    )
    for name, found in figures.items():
        table.add_row(
            name.replace("_", " "),
            money(float(curves[name].equity[-1])),
            percent(found.total_return, 2),
            percent(found.cagr, 2),
            _UNDEFINED if found.sharpe is None else ratio(found.sharpe),
            percent(found.max_drawdown, 2),
            ratio(found.turnover),
            _UNDEFINED if found.beta is None else ratio(found.beta),
        )
    table.print(console)


ACT_EXAMPLES = """[bold]Examples[/]

  eigen act mine --data prices.csv
  eigen act mine --data prices.csv --date 2024-03-28 --json
"""


@sentences
def act(
    name: RunName,
    data: Annotated[
        str | None, typer.Option(help="Newer prices.", show_default="where the run's prices are", metavar="PATH")
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(help="Decide after the close of this day.", show_default="last of the prices", metavar="DATE"),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="File that keeps the orders.", show_default="in the run's folder", metavar="FILE"),
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what the champion orders for the next day, and keep it; no order is sent anywhere."""
    from eigen_core.common.progress import progress_to
    from eigen_core.judging.act import act as decide
    from flows.cli.display import display_on

    with display_on(Console(stderr=True)) as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            found = decide(store_of(store), name, data=data, date=date, ledger=ledger)
    print_result(as_json, act_document, print_act, found)


def act_document(found: "Act") -> dict[str, Any]:
    """Return what `eigen act --json` prints. Its keys are a contract."""
    after = found.next
    return {
        "run": found.run,
        "champion": found.champion,
        "date": after.date,
        "began": found.began,
        "equity": after.equity,
        "cash": after.cash,
        "orders": [asdict(order) for order in after.orders],
        "positions": [asdict(position) for position in after.positions],
        "reconciliation": asdict(found.reconciliation),
        "ledger": str(found.ledger),
    }


def print_act(console: Console, found: "Act") -> None:
    """Print the orders, the account, and the days on which the replay differs from what was ordered."""
    after = found.next
    print_line(console, (f"Champion of run {found.run} after the close of {after.date}", "bold"))
    table = PlainTable(
        "side", "symbol", "shares", "money", "target", "latest exit", left=("side", "symbol", "latest exit")
    )
    for order in after.orders:
        target = "–" if order.target is None else f"{order.target:,.4f}"
        numbers = (f"{order.size:,.4f}", f"{order.money:,.2f}", target)
        table.add_row(order.side, order.symbol, *numbers, order.latest_exit or "–")
    if after.orders:
        table.print(console)
        print_line(console, "Sizes are those at the last close; latest exits count holidays as days of trading.")
    else:
        print_line(console, "Nothing is ordered.")
    print_line(
        console,
        f"Account since {found.began}: equity {after.equity:,.2f}, cash {after.cash:,.2f}, positions "
        f"{len(after.positions)}.",
    )
    _print_reconciliation(console, found.reconciliation)
    print_line(console, f"Orders are kept in {found.ledger}.")


def _print_reconciliation(console: Console, found: "Reconciliation") -> None:
    differing = len(found.differences) + len({one.date for one in found.sizes})
    print_line(console, f"Earlier days that agree with the replay: {found.agreeing}, that differ: {differing}.")
    for day in found.differences:
        issued = "no orders were asked for" if day.missed else f"ordered {day.issued or 'nothing'}"
        print_line(console, f"  {day.date}: {issued}, the replay orders {day.replayed or 'nothing'}")
    for size in found.sizes:
        issued, replayed = f"{size.issued:,.2f}", f"{size.replayed:,.2f}"
        print_line(console, f"  {size.date}: {size.symbol} was ordered for {issued}, the replay makes it {replayed}")
    for one in found.corrections:
        days = f"on {count(len(one.dates), 'day')} from {one.dates[0]} to {one.dates[-1]}"
        alike = "" if one.factor is None else f"; all by the factor {one.factor:.6g}, as after a split"
        then, now = ("nothing" if price is None else f"{price:,.6g}" for price in (one.then, one.now))
        changed = f"{one.price} of {one.dates[0]} {then}, now {now}{alike}"
        print_line(console, f"  {one.symbol}: prices {days} were corrected since: {changed}")
    if found.corrections:
        print_line(console, "The replay trades at the corrected prices: differences may come from them.")
