"""The command `eigen download`: bars of exchanges and of Yahoo, as files that `--data` reads."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from eigen_core.common.errors import InputError, needs_extra
from eigen_core.common.files import require_place
from flows.cli.common import examples, option
from flows.cli.console import output_console, print_line, progress_shown

_DAY = ["%Y-%m-%d"]


@examples(
    """
  eigen download ccxt binance BTC/USDT ETH/USDT --bar 5m --from 2024-01-01 --out coins
  eigen download yfinance AAPL MSFT --from 2010-01-01 --out stocks
  eigen train --data stocks

The same command continues after the last bar of each file, and after an interruption.
"""
)
def download(
    vendor: Annotated[Literal["ccxt", "yfinance"], typer.Argument(help="Package that downloads.", metavar="VENDOR")],
    names: Annotated[
        list[str],
        typer.Argument(help="Of ccxt: an exchange, then its spot markets. Of yfinance: symbols.", metavar="NAMES"),
    ],
    *,
    first: Annotated[datetime, option("DAY", "First day.", None, "--from", formats=_DAY)],
    last: Annotated[datetime | None, option("DAY", "Last day.", "today", "--to", formats=_DAY)] = None,
    bar: Annotated[
        Literal["1m", "5m", "15m", "30m", "1h", "4h", "1d"],
        option("LENGTH", "Length of a bar: 1m, 5m, 15m, 30m, 1h, 4h or 1d."),
    ] = "1d",
    out: Annotated[Path, option("FOLDER", "Folder for the files, one per symbol.")],
) -> None:
    """Download bars of an exchange or of Yahoo; run the same command again for newer ones."""
    with needs_extra("download", "eigen download"):
        from eigen_core.market.download import Exchange, Vendor, Yahoo, file_of, update

        found: Vendor = Yahoo(bar) if vendor == "yfinance" else Exchange(names.pop(0), bar)
    if not names:
        raise InputError("No market is named: name some after the exchange, such as BTC/USDT.")
    files = {symbol: file_of(out, symbol, bar) for symbol in names}
    for file in files.values():
        require_place(file)
    found.require(names)
    for symbol, file in files.items():
        with progress_shown() as display:
            display.waiting_for(symbol)
            bars = update(file, found, symbol, first.date(), (last or datetime.now(UTC)).date() + timedelta(days=1))
        dates = bars["date"]
        print_line(output_console(), f"{file}: {len(bars):,} bars, from {dates.iloc[0]} to {dates.iloc[-1]}")
