"""The prices that come with Eigen, and what `market.data` names."""

import os
from pathlib import Path

from eigen_core.common.errors import InputError

_FOLDER = Path(__file__).parents[1] / "market" / "data"
_DEFAULT = _FOLDER / "sp500_20_close_1990_2022.csv.gz"
BUNDLED = {"us5": _FOLDER / "us5_ohlcv_2000_2013_long.csv.gz"}
"""Bundled price files by the name that `market.data` may have."""


def path_of_data(data: str | None) -> Path:
    """Return the path that `config.market.data` names; None: the 20 stocks of the S&P 500.

    Raises:
        InputError: it is blank, or may be bundled prices or a file or folder in the working folder.
    """
    if data is None:
        return _DEFAULT
    if not data.strip():
        raise InputError("market.data is blank: name a price file or a folder, or leave the setting out.")
    if data not in BUNDLED:
        # A home folder that is not known stays as it is written: there is no such file.
        return Path(os.path.expanduser(data))
    if os.path.lexists(data):
        raise InputError(
            f"market.data '{data}' can be read in two ways: the bundled prices, or {Path.cwd() / data}: write "
            f"./{data} for the latter, or rename it to use the bundled prices."
        )
    return BUNDLED[data]


def absolute_data(data: str) -> str:
    """Return `market.data` as it can be used from any folder: the name of bundled prices, or an absolute path."""
    return data if data in BUNDLED else str(Path(os.path.expanduser(data)).absolute())


def own_path(data: str | None) -> str | None:
    """Return `market.data` where it is a path; None where it stands for bundled prices."""
    return None if data in BUNDLED else data
