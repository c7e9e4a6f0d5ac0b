"""The files of a backtest: the account day by day, its trades and where its gain came from, as CSV and as Parquet."""

from pathlib import Path

import numpy as np
import pandas as pd

from eigen_core.account.equity import share_of
from eigen_core.account.figures import drawdowns
from eigen_core.store.files import explained, replacing
from flows.backtests import Backtest


def write_backtest(backtest: Backtest, folder: Path) -> list[Path]:
    """Write the tables of a backtest into a folder, which is made if it is missing; return the files.

    Raises:
        InputError: they cannot be written.
    """
    tables = {
        "equity": equity_table(backtest),
        "trades": backtest.trades,
        "by_asset": backtest.by_asset,
        "by_month": backtest.by_month,
    }
    return [path for name, table in tables.items() for path in write_table(table, folder / name)]


def equity_table(backtest: Backtest) -> pd.DataFrame:
    """Return the account day by day, one row each, and the equity of the baselines, one column each.

    Columns: date, equity, return, drawdown (fractions), exposure (share of the equity), traded (money), turnover (what
    was traded as a share of the equity), costs (money); then the names of the baselines (money).
    """
    curve = backtest.curve
    return pd.DataFrame(
        {
            "date": curve.dates.astype("datetime64[s]"),
            "equity": curve.equity,
            "return": curve.returns,
            "drawdown": drawdowns(curve),
            "exposure": curve.exposure,
            "traded": curve.traded,
            "turnover": share_of(curve.traded, curve.equity),
            "costs": curve.costs,
            **{name: np.asarray(baseline.equity) for name, baseline in backtest.baselines.items()},
        }
    )


def write_table(table: pd.DataFrame, stem: Path) -> list[Path]:
    """Write a table as CSV and as Parquet, into a folder that is made if it is missing; return the files.

    Args:
        table: to write.
        stem: the files, without their suffix.

    Raises:
        InputError: they cannot be written.
    """
    with explained("write", stem.parent):
        stem.parent.mkdir(parents=True, exist_ok=True)
    text, binary = stem.with_suffix(".csv"), stem.with_suffix(".parquet")
    with explained("write", text), replacing(text) as target:
        target.write(table.to_csv(index=False).encode())
    with explained("write", binary), replacing(binary) as target:
        target.write(table.to_parquet(index=False))
    return [text, binary]
