"""The command `eigen act`: what the champion of a run orders for the next day."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.units import count
from flows.cli.common import Json, RunName, Store, sentences, store_of
from flows.cli.output import PlainTable, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.judging.act import Act, Reconciliation

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
