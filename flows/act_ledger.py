"""The file that keeps since when a champion's orders were asked for, and which were issued on each day."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.backtest.interface import Order
from eigen_core.config import AccountConfig
from eigen_core.errors import InputError
from eigen_core.store.files import explained, replacing

KnownPrices = tuple[float | None, float | None, float | None]
"""Open, high and close of an asset on a day; None where there is none."""


class ActLedger(BaseModel):
    """What was ordered.

    Attributes:
        run: its name.
        champion: SHA-256 of the weights.
        champion_generation: in which they were found.
        account: how the account in money is kept.
        began: date of the first orders.
        days: orders that were issued after each day, by date.
        prices: of each day from the first window on, by date and symbol, as they were when they were first seen; empty
            in files from before they were kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["eigen act 1"] = "eigen act 1"
    run: str
    champion: str
    champion_generation: int
    account: AccountConfig
    began: str
    days: dict[str, tuple[Order, ...]]
    prices: dict[str, dict[str, KnownPrices]] = {}

    @property
    def last(self) -> str:
        """Date of the latest orders."""
        return max(self.days, default=self.began)


def read_ledger(path: Path) -> ActLedger | None:
    """Return what a file keeps; None if it is not there.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    with explained("read", path):
        if not path.exists():
            return None
        content = path.read_bytes()
    try:
        return ActLedger.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{path} is no ledger of orders: move it away, or name another with --ledger.") from error


def write_ledger(ledger: ActLedger, path: Path) -> None:
    """Replace the file as a whole; raise `InputError` if it cannot be written."""
    with explained("write", path), replacing(path) as target:
        target.write(ledger.model_dump_json().encode())
