"""The commands that judge agents or prices: `backtest`, `compare`, `report`, `act`, `audit`, `importance`, `trust`."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.checkpoint.store import check_run_name
from eigen_core.common.errors import InputError, needs_extra
from eigen_core.common.files import require_own_files, require_place
from eigen_core.common.text import change, count, money, percent, ratio
from flows.cli.common import (
    DATA_DEFAULT,
    DATA_HELP,
    EXIT_OTHER,
    Agent,
    Json,
    JudgedBy,
    RunName,
    RunOptions,
    Slice,
    Store,
    examples,
    number,
    option,
    run_options,
    store_of,
)
from flows.cli.console import PlainTable, attributes, print_fact, print_line, print_result, progress_shown

if TYPE_CHECKING:
    import pandas as pd

    from eigen_core.judging.act import Act, Reconciliation
    from eigen_core.judging.backtest import SpanResult
    from eigen_core.judging.choice import Choice
    from eigen_core.judging.importance import RunImportance
    from eigen_core.judging.run_backtests import Backtest
    from eigen_core.judging.trust import Trial, Trust
    from eigen_core.judging.walk_forward import WalkResult
    from eigen_core.market.audit import MarketAudit
    from eigen_core.reporting.compare import Account, Comparison
    from eigen_core.reporting.report import Report
    from eigen_core.trading.baselines import MatchedTraders
    from eigen_core.trading.equity import EquityCurve
    from eigen_core.trading.metrics import Metrics
    from flows.cli.console import Display

COMPARED = ("total_return", "sharpe", "max_drawdown")
"""Fields of `Metrics` that `--json` prints for each account: agents, baselines, seeds of a walk."""


@examples(
    """
  eigen backtest first                                     the champion on the holdout
  eigen backtest first --slice validation --agent ensemble
  eigen backtest first --slice 2015-01-01:2016-12-31 --set account.shares=whole --set account.capital=20000

Every evaluation on days that no agent was trained on is counted permanently; the verdict allows for their number.
"""
)
def backtest(
    name: RunName,
    span: Slice = None,
    agent: Agent = "champion",
    assignments: JudgedBy = None,
    out: Annotated[Path | None, option("FOLDER", "Folder for the tables.", "in the run's folder")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what agents would have earned in money over a span of days, beside baselines and random traders."""
    from eigen_core.judging.run_backtests import backtest as play, write_backtest

    if out is not None:
        # Refused before the evaluation, since every evaluation is counted.
        require_place(out / "equity.csv")
    with progress_shown():
        found = play(store_of(store), name, span=span, agent=agent, settings=assignments or ())
    folder = out or found.folder
    write_backtest(found, folder)
    print_result(as_json, backtest_document, print_backtest, found, folder)


def backtest_document(found: "Backtest", folder: Path) -> dict[str, Any]:  # noqa: ARG001 - what is printed has it
    own = found.metrics.total_return
    return {
        **attributes(found, "run", "agent"),
        "slice": found.span,
        **attributes(found.metrics, "longest_drawdown_days", "turnover"),
        "exposure": float(found.curve.exposure.mean()),
        "trades": len(found.trades),
        "win_rate": _won(found.trades),
        "costs": float(found.curve.costs.sum()),
        "warnings": found.warnings,
        "capacity": {str(times): earned for times, earned in found.capacity.items()},
        **account_document(found),
        "timing": {
            **_random_document(found.timing, own, "shifts"),
            "pvalue": found.verdict.timing_pvalue,
            "judged_by_it": found.by_timing,
        },
    }


def account_document(played: "Backtest | WalkResult") -> dict[str, Any]:
    curve, figures, excess = played.curve, played.metrics, played.excess
    shown = None if excess is None else attributes(excess, "mean", "standard_error")
    per_year = excess is not None and excess.per == "year"
    matched = _random_document(played.matched, figures.total_return, "draws")
    return {
        **_days_of(curve),
        "days": len(curve.dates),
        "capital": curve.capital,
        "final": float(curve.equity[-1]),
        **attributes(figures, *COMPARED, "cagr", "volatility"),
        "periods_per_year": played.periods_per_year,
        "excess_per_trade": None if per_year else shown,
        "excess_per_year": shown if per_year else None,
        **attributes(played.verdict, "sharpe_interval", "looks", "deflated_sharpe"),
        "baselines": {
            **{name: attributes(baseline, *COMPARED) for name, baseline in played.baseline_metrics.items()},
            "matched_random": matched,
        },
        "verdict": attributes(played.verdict, "claim", "sentence"),
    }


def _days_of(curve: "EquityCurve") -> dict[str, str]:
    return {"first": str(curve.dates[0]), "last": str(curve.dates[-1])}


def _random_document(drawn: "MatchedTraders", own: float, number: str) -> dict[str, Any]:
    returns = {"median": drawn.median_return, "quantile_of_agent": drawn.quantile_of(own)}
    return {**returns, number: len(drawn.total_returns)}


def _won(trades: "pd.DataFrame") -> float | None:
    """Return the share of trades with a gain; None without trades, or for a portfolio, whose rows are single orders."""
    return float((trades["gain"] > 0.0).mean()) if len(trades) and "exit" in trades else None


def print_backtest(console: Console, found: "Backtest", folder: Path) -> None:
    from eigen_core.market.formats import unit_of

    curve, trades, excess = found.curve, found.trades, found.excess
    who = found.agent if found.agent == "champion" else f"agent {found.agent}"
    who = f"{found.agent} ({found.agents} agents)" if found.agents > 1 else who
    print_line(
        console,
        (f"{who} of run {found.run}, generation {found.generation}, {curve.days}", "bold"),
        f" ({found.span}, {curve.length})",
    )
    print_line(console, found.verdict.sentence[0].upper(), found.verdict.sentence[1:])
    _print_warnings(console, [found])
    print_metrics(console, "account", accounts_of(who, found))
    _print_random(console, "matched", found.matched, found.metrics.total_return)
    if not found.by_timing:
        luck = f", by luck {percent(found.verdict.timing_pvalue)}"
        _print_random(console, "timing", found.timing, found.metrics.total_return, luck)
    share = _won(trades)
    won = "" if share is None else f", {percent(share, 0)} with a gain"
    costs = f"costs {curve.costs.sum():,.0f}; turnover {found.metrics.turnover:.1f} a year"
    print_fact(console, "trades", f"{len(trades):,}{won}; {costs}")
    if found.capacity:
        earned = "; ".join(f"{times}: {percent(gain, 2)}" for times, gain in found.capacity.items())
        print_fact(console, "capacity", f"total return by multiples of the capital: {earned}")
    if excess is not None:
        market = "all assets on the same days" if excess.per == "trade" else "equal weight of the same exposure"
        if found.by_timing:
            market = "buying on any day" if excess.per == "trade" else "the same exposure on all days"
        print_fact(console, "excess", f"{excess} beyond {market}")
    year = count(found.periods_per_year, unit_of(curve.dates))
    print_fact(console, "a year", f"{year} of trading, by which figures are annualised")
    print_fact(console, "tables", str(folder))


def _print_warnings(console: Console, played: "Iterable[Backtest]") -> None:
    """Print each warning of backtests once, except those on the evaluation log, which were logged."""
    for warning in dict.fromkeys(one for each in played for one in each.warnings if one not in each.looks.warnings):
        print_line(console, warning)


def _print_random(console: Console, label: str, drawn: "MatchedTraders", own: float, luck: str = "") -> None:
    quantile, median = drawn.quantile_of(own), drawn.median_return
    if quantile is not None and median is not None:
        earned = f"median {change(100.0 * median, 1)} %; {percent(quantile, 0)} of them earn less{luck}"
        print_fact(console, label, f"{len(drawn.total_returns):,} {drawn.description}: {earned}")


_SHOWN_DIFFERENCES = 20


@examples(
    """
  eigen compare first second
  eigen compare first second --slice validation --out comparison.html
"""
)
def compare(
    names: Annotated[list[str], typer.Argument(help="Names of the runs.", metavar="NAME NAME...")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[Path | None, option("FILE", "HTML file with the curves to write.")] = None,
    assignments: JudgedBy = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show runs side by side on the same days, and the settings in which they differ."""
    from eigen_core.reporting.compare import write_comparison

    with progress_shown():
        compared = write_comparison(
            store_of(store), names, span=span, agent=agent, file=out, settings=assignments or ()
        )
    print_result(as_json, comparison_document, print_comparison, compared)


def print_comparison(console: Console, compared: "Comparison") -> None:
    for run, played in compared.runs.items():
        print_line(console, (f"{run}: ", "bold"), played.verdict.statement)
    _print_warnings(console, compared.runs.values())
    first = next(iter(compared.runs.values()))
    print_line(console, f"{first.span}, {first.curve.days}")
    print_metrics(console, "run", compared.accounts)
    if not compared.differences:
        print_line(console, "The runs have the same settings.")
    else:
        table = PlainTable("setting", *compared.runs, left=("setting", *compared.runs))
        for key, values in list(compared.differences.items())[:_SHOWN_DIFFERENCES]:
            table.add_row(key, *values.values())
        table.print(console)
        if len(compared.differences) > _SHOWN_DIFFERENCES:
            more = len(compared.differences) - _SHOWN_DIFFERENCES
            print_line(console, f"{more} more differ; --json and --out have them all.")
    if compared.file is not None:
        print_fact(console, "page", str(compared.file))


def comparison_document(compared: "Comparison") -> dict[str, Any]:
    first = next(iter(compared.runs.values()))
    return {
        "slice": first.span,
        **_days_of(first.curve),
        **attributes(first, "periods_per_year", "risk_free"),
        **attributes(compared, "file", "warnings", "differences"),
        "runs": {
            run: {
                "capital": played.curve.capital,
                "final": float(played.curve.equity[-1]),
                "figures": played.metrics,
                "verdict": {"claim": played.verdict.claim, "sentence": played.verdict.statement},
                "benchmark": _benchmark(compared.benchmarks[run]),
            }
            for run, played in compared.runs.items()
        },
        "benchmark": _benchmark(compared.benchmark),
    }


def _benchmark(known: "Account | None") -> dict[str, Any] | None:
    return None if known is None else {"name": known[0], "figures": known[2]}


@examples(
    """
  eigen report first
  eigen report first --slice 2012-01-03:2013-12-31 --agent 3 --out agent-3.html
  eigen report years                       the joined account of a walk and its folds
  eigen report coins                       the trials of a sweep with cross-validation
"""
)
def report(
    name: Annotated[str, typer.Argument(help="Name of the run, the walk or the sweep.", metavar="NAME")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[Path | None, option("FILE", "HTML file to write.", "NAME-report.html")] = None,
    assignments: JudgedBy = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write what a run, walk or sweep would have earned, and whether to believe it, into one HTML file to send."""
    from eigen_core.config.model import CheckpointConfig
    from eigen_core.judging.cross_validation import sweep_folder
    from eigen_core.reporting.report import write_report

    file = out or Path(f"{name}-report.html")
    checkpoint = CheckpointConfig(store=store_of(store))
    if (sweep_folder(checkpoint) / f"{check_run_name(name)}.db").is_file():
        report_sweep(checkpoint.store, name, file, as_json)
        return
    with progress_shown():
        found = write_report(store_of(store), name, span=span, agent=agent, file=file, settings=assignments or ())
    print_result(as_json, report_document, print_report, found, agent, file)


def report_sweep(store: str, name: str, file: Path, as_json: bool) -> None:
    with needs_extra("sweep", f"The report of sweep '{name}'"):
        from eigen_core.reporting.sweep_report import write_sweep_report
    with progress_shown():
        choice = write_sweep_report(store, name, file)
    print_result(as_json, choice_document, print_choice, choice, file)


def choice_document(choice: "Choice", file: Path | None) -> dict[str, Any]:
    overfitting = None if choice.overfitting is None else choice.overfitting.probability
    known = attributes(choice, "claim", "trials", "correlation", "deflated", "equals", "bars", "needed")
    return {"best": choice.best.number, "overfitting": overfitting, **known, "file": file and str(file)}


def print_choice(console: Console, choice: "Choice", file: Path | None) -> None:
    for sentence in choice.sentences:
        print_line(console, sentence)
    if file is not None:
        print_fact(console, "report", str(file))


def print_report(console: Console, report: "Report", agent: str, file: Path) -> None:  # noqa: ARG001
    print_line(console, (report.verdict.statement, "bold"))
    print_line(console, f"{report.run}, {report.agent}: {report.span}, {report.played.curve.days}")
    print_metrics(console, "account", accounts_of("agent", report.played))
    print_fact(console, "report", str(file))


def report_document(report: "Report", agent: str, file: Path) -> dict[str, Any]:
    played = report.played
    return {
        "run": report.run,
        **_days_of(played.curve),
        "warnings": report.warnings,
        "agent": agent,
        "file": file,
        "slice": report.span,
        "days": len(played.curve.dates),
        "folds": [{"fold": f"fold {fold.number}", **attributes(fold.played, "first", "last")} for fold in report.folds],
        **attributes(played, "periods_per_year", "risk_free"),
        "figures": played.metrics,
        "baselines": played.baseline_metrics,
        "verdict": {"claim": report.verdict.claim, "sentence": report.verdict.statement},
    }


def accounts_of(name: str, played: "SpanResult") -> dict[str, tuple["EquityCurve", "Metrics"]]:
    baselines = {key: (curve, played.baseline_metrics[key]) for key, curve in played.baselines.items()}
    return {name: (played.curve, played.metrics), **baselines}


def print_metrics(console: Console, heading: str, accounts: Mapping[str, tuple["EquityCurve", "Metrics"]]) -> None:
    headers = (heading, "final", "total return", "CAGR", "Sharpe", "max drawdown", "turnover", "beta")
    table = PlainTable(*headers, left=(heading,), least_important=("turnover", "CAGR", "beta"))
    for name, (curve, found) in accounts.items():
        table.add_row(
            name.replace("_", " "),
            money(float(curve.equity[-1])),
            percent(found.total_return, 2),
            percent(found.cagr, 2),
            "–" if found.sharpe is None else ratio(found.sharpe),
            percent(found.max_drawdown, 2),
            ratio(found.turnover),
            "–" if found.beta is None else ratio(found.beta),
        )
    table.print(console)


@examples(
    """
  eigen act mine --data prices.csv
  eigen act mine --data prices.csv --date 2024-03-28 --json
  eigen act mine --set "account.start=AAPL 10, MSFT 2.5" --set account.capital=4200.50
"""
)
def act(
    name: RunName,
    data: Annotated[str | None, option("PATH", "Newer prices.", "where the run's prices are")] = None,
    date: Annotated[str | None, option("DATE", "Decide after the close of this day.", "last of the prices")] = None,
    ledger: Annotated[Path | None, option("FILE", "File that keeps the orders.", "in the run's folder")] = None,
    assignments: JudgedBy = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the champion's orders for the next day, and keep them in a file; no order is sent anywhere."""
    from eigen_core.judging.act import act as decide

    with progress_shown():
        found = decide(store_of(store), name, data=data, date=date, ledger=ledger, settings=assignments or ())
    print_result(as_json, act_document, print_act, found)


def act_document(found: "Act") -> dict[str, Any]:
    return {
        **attributes(found, "run", "champion", "began", "reconciliation", "ledger", "session"),
        **attributes(found.next, "date", "equity", "cash", "orders", "positions"),
    }


def print_act(console: Console, found: "Act") -> None:
    after = found.next
    print_line(console, (f"Champion of run {found.run} after the close of {after.date}", "bold"))
    headers = ("side", "symbol", "shares", "money", "target", "latest exit")
    table = PlainTable(*headers, left=("side", "symbol", "latest exit"))
    for order in after.orders:
        target = "–" if order.target is None else f"{order.target:,.4f}"
        numbers = (f"{order.size:,.4f}", f"{order.money:,.2f}", target)
        table.add_row(order.side, order.symbol, *numbers, order.latest_exit or "–")
    if after.orders:
        table.print(console)
        days = "are those of the calendar" if found.session else "count holidays as days of trading"
        print_line(console, f"Sizes assume the last close; latest exits {days}.")
    else:
        print_line(console, "Nothing is ordered.")
    if found.session:
        print_line(console, f"The next session is from {found.session[0]} to {found.session[1]}.")
    account = f"equity {after.equity:,.2f}, cash {after.cash:,.2f}, positions {len(after.positions)}"
    print_line(console, f"Account since {found.began}: {account}.")
    _print_reconciliation(console, found.reconciliation)
    print_line(console, f"Orders are kept in {found.ledger}.")


def _print_reconciliation(console: Console, found: "Reconciliation") -> None:
    differing = len(found.differences) + len({one.date for one in found.sizes})
    same = f"the same on {count(found.agreeing, 'day')}, different on {differing}"
    print_line(console, f"Orders of earlier days, computed again from the prices as they are now: {same}.")
    for day in found.differences:
        issued = "eigen act was not called" if day.missed else f"ordered {day.issued or 'nothing'}"
        print_line(console, f"  {day.date}: {issued}, now it would be {day.replayed or 'nothing'}")
    for size in found.sizes:
        issued, replayed = f"{size.issued:,.2f}", f"{size.replayed:,.2f}"
        print_line(console, f"  {size.date}: {size.symbol} was ordered for {issued}, now it would be {replayed}")
    for one in found.corrections:
        days = f"on {count(len(one.dates), 'day')} from {one.dates[0]} to {one.dates[-1]}"
        alike = "" if one.factor is None else f"; all by the factor {one.factor:.6g}, as after a split"
        then, now = ("nothing" if price is None else f"{price:,.6g}" for price in (one.then, one.now))
        changed = f"{one.price} of {one.dates[0]} {then}, now {now}{alike}"
        print_line(console, f"  {one.symbol}: prices {days} were corrected since: {changed}")
    if found.corrections:
        print_line(console, "Orders computed again are for the corrected prices: differences may come from them.")


@examples(
    """
  eigen audit --data prices.csv
  eigen audit --data prices.csv --set market.own_features=columns,gap --days 20

Exit code 0: no look-ahead was found; 1: a feature uses later days, or is suspected; 2: what was given cannot be used.
"""
)
@run_options("preset", "assignments", "data")
def audit(
    *,
    options: RunOptions,
    days: Annotated[int, number("Number of days to test, by changing all rows after each.", most=1_000)] = 8,
    as_json: Json = False,
) -> None:
    """Test whether a feature uses later days (look-ahead), and show what is wrong with the prices."""
    from eigen_core.market.audit import audit_market

    config = options.config()
    with progress_shown():
        audited = audit_market(config, days)
    print_result(as_json, audit_document, print_audit, audited)
    if not audited.is_clean:
        raise typer.Exit(EXIT_OTHER)


def audit_document(audited: "MarketAudit") -> dict[str, Any]:
    return {
        **attributes(audited, "is_clean", "features", "symbols", "days", "unseen"),
        "found": [{**asdict(finding), "sentence": str(finding)} for finding in audited.found],
        "suspected": [{**asdict(leak), "sentence": str(leak)} for leak in audited.suspected],
        "report": {**asdict(audited.report), "lines": audited.report.lines()},
    }


def print_audit(console: Console, audited: "MarketAudit") -> None:
    for line in audited.report.lines():
        print_line(console, line)
    print_line(
        console,
        f"Tried {count(len(audited.features), 'feature')} of {count(audited.symbols, 'symbol')} on "
        f"{count(len(audited.days), audited.unit)} ({audited.days[0]} to {audited.days[-1]}): the {audited.unit}s "
        "after each were cut off, then shuffled.",
    )
    for finding in (*audited.found, *audited.suspected):
        print_line(console, str(finding))
    if audited.is_clean:
        print_line(console, f"No value up to these {audited.unit}s changed: no look-ahead was found.")
    print_line(console, audited.unseen)


@examples(
    """
  eigen importance mine
  eigen importance mine --agent elites --draws 50 --json

In the validation episodes, the values of each feature and of each column are moved to other days: what changes then
depends on them. No holdout day is read.
"""
)
def importance(
    name: RunName,
    agent: Annotated[
        str, option("AGENT", "champion, elites, or an agent's number in the newest generation.")
    ] = "champion",
    draws: Annotated[int, option("N", "Number of random shifts of each feature and column.", min=2, max=10_000)] = 10,
    assignments: JudgedBy = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show which features and which columns (symbols) of the prices the agents of a run use."""
    from eigen_core.judging.importance import run_importance

    with progress_shown():
        found = run_importance(store_of(store), name, agent=agent, draws=draws, settings=assignments or ())
    print_result(as_json, lambda found: found, print_importance, found)


def print_importance(console: Console, found: "RunImportance") -> None:
    days = f"validation episodes from {found.first} to {found.last}, {found.draws} draws"
    print_line(console, f"Run {found.run}, generation {found.generation}, {found.agent}: {days}.")
    for kind, importances in (("feature", found.features), ("column", found.columns)):
        headers = (kind, "other decisions", "5 to 95 %", "loss", "loss, 5 to 95 %")
        table = PlainTable(*headers, left=(kind,), least_important=("loss, 5 to 95 %", "5 to 95 %"))
        for each in importances:
            table.add_row(
                each.name,
                percent(each.changed),
                " to ".join(map(percent, each.changed_interval)),
                "" if each.excess_lost is None else f"{change(each.excess_lost)} %",
                " to ".join(map(change, each.excess_lost_interval or ())),
            )
        table.print(console)
    print_line(
        console,
        "Other decisions: share of the days on which an agent buys something else, or nothing, if these values come "
        "from other days; of a portfolio, the share that is then in other assets. Loss: how much less a trade, or a "
        "portfolio in a year, then gains beyond the market.",
    )
    if found.low_columns:
        print_line(console, f"Hardly used: {', '.join(found.low_columns)}.")


COLUMNS = ("market", "trials", "skill claimed", "95 % interval", "of ridge regression")


@examples(
    """
  eigen trust
  eigen trust prices.csv --trials 40 --edges 0.05,0.1,0.15
  eigen trust prices.csv --preset ddpg --set market.holdout=251 --out trust-mine

Each trial trains a small run in memory and judges its champion as `eigen backtest` does. Finished trials are kept in
the folder: run the command again to continue, or with more trials.
"""
)
@run_options("generations", "seed", "assignments")
def trust(
    data: Annotated[str | None, typer.Argument(help=DATA_HELP, show_default=DATA_DEFAULT, metavar="[DATA]")] = None,
    *,
    preset: Annotated[str | None, option("NAME", "Preset of the trials.", "quickstart")] = None,
    trials: Annotated[int, number("Number of trials without an edge, and with each.", most=10_000)] = 10,
    edges: Annotated[
        str, option("LIST", "Information coefficients of the planted edges; an empty text: none.")
    ] = "0.05,0.1,0.2,0.3",
    options: RunOptions,
    out: Annotated[Path | None, option("FOLDER", "Folder of the finished trials.", "trust")] = None,
    as_json: Json = False,
) -> None:
    """Measure how far verdicts can be trusted: false alarms on prices of noise, and which planted edges are found."""
    wanted = edges_in(edges)
    folder = require_own_files(Path.cwd(), "trust") if out is None else out
    from eigen_core.judging.trust import TRIAL_PRESET, TrustTrials, trust_document, with_trial_settings

    settings = with_trial_settings(replace(options, seed=None).settings())
    trial = RunOptions(preset or TRIAL_PRESET, seed=options.seed, assignments=settings, data=data, device="cpu")
    config = trial.config()
    console = Console(stderr=True)

    def made(trial: "Trial", done: int, of: int) -> None:
        if not console.is_terminal:
            print_line(console, f"trial {done}/{of}  {_market(trial.edge)}, seed {trial.seed}: {trial.claim}")

    with progress_shown(console, "trials") as display:
        measured = TrustTrials(config, folder).run(trials, wanted, partial(show_trial, display), made)
    print_result(as_json, trust_document, print_trust, measured)


def show_trial(display: "Display", number: int, of: int) -> None:
    display.progressed(number - 1, of)
    display.waiting_for(f"trial {number} of {of}")


def edges_in(text: str) -> tuple[float, ...]:
    """Return the information coefficients in a text, separated by commas; `InputError` if one is not from 0 to 1."""
    with suppress(ValueError):
        edges = tuple(float(part) for part in text.split(",") if part.strip())
        if all(0.0 <= edge <= 1.0 for edge in edges):
            return edges
    raise InputError(f"--edges {text}: give information coefficients from 0 to 1, such as 0.05,0.1,0.2.")


def print_trust(console: Console, trust: "Trust") -> None:
    table = PlainTable(*COLUMNS, left=COLUMNS[:1])
    for row in rows_of(trust):
        table.add_row(*row)
    table.print(console)
    for sentence in trust.sentences:
        print_line(console, sentence)


def rows_of(trust: "Trust") -> list[tuple[str, ...]]:
    """Return how many trials claimed skill, without an edge and with each, and of ridge, as rows under `COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for edge, claims in ((None, trust.false_alarms), *trust.power.items()):
        low, high = claims.interval
        interval = f"{percent(low, 0)} to {percent(high, 0)}"
        ridge = f"{known.claimed} of {known.trials}" if (known := trust.ridge.get(edge)) else "–"
        rows.append((_market(edge), str(claims.trials), str(claims.claimed), interval, ridge))
    return rows


def _market(edge: float | None) -> str:
    return "nothing to predict" if edge is None else f"planted edge {edge:g}"
