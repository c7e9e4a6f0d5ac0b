"""Where an account's gain came from: by asset, and by month."""

import numpy as np
import pandas as pd

from eigen_core.account.equity import EquityCurve, share_of


def gain_by_asset(trades: pd.DataFrame) -> pd.DataFrame:
    """Return what each asset gave, one row each, the highest gain first.

    Args:
        trades: rows of `TradedAccounts.table` or `WeightsAccounts.table`.

    Columns: symbol, trades, won (share of them with a gain; NaN where rows are single orders), paid, costs, gain
    (money).
    """
    won = trades["gain"] > 0.0 if "exit" in trades else np.nan
    grouped = trades.assign(won=won).groupby("symbol")
    table = grouped.agg(
        trades=("gain", "size"), won=("won", "mean"), paid=("paid", "sum"), costs=("costs", "sum"), gain=("gain", "sum")
    )
    return table.sort_values("gain", ascending=False, kind="stable").reset_index()


def gain_by_month(curve: EquityCurve, trades: pd.DataFrame) -> pd.DataFrame:
    """Return what each month gave, one row each.

    Args:
        curve: the account.
        trades: rows of `TradedAccounts.table` or `WeightsAccounts.table`.

    Columns: month (2013-01), return (a fraction of the equity before it), gain, traded, costs (money), bought (number
    of purchases).
    """
    days = pd.DataFrame(
        {
            "month": curve.dates.astype("datetime64[M]").astype(str),
            "gain": np.diff(curve.equity, prepend=curve.capital),
            "traded": curve.traded,
            "costs": curve.costs,
        }
    )
    table = days.groupby("month").sum()
    before = curve.capital + table["gain"].cumsum().shift(fill_value=0.0)
    table.insert(0, "return", share_of(table["gain"].to_numpy(), before.to_numpy()))
    bought = trades.loc[trades["shares"] > 0.0, "fill"].dt.strftime("%Y-%m").value_counts()
    table["bought"] = bought.reindex(table.index, fill_value=0).astype(int)
    return table.reset_index()
