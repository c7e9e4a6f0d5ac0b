"""The file that keeps since when a champion's orders were asked for, and which were issued on each day."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from eigen_core.backtest.interface import Order
from eigen_core.checkpoint.checksums import checksummed, parse_checksummed
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.config import AccountConfig
from eigen_core.errors import InputError
from eigen_core.store.files import explained, replacing

_UNCHECKED = "eigen act 1"
"""The format of files from before they had a checksum."""
_ANOTHER_FILE = "give another file with --ledger"

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

    format: Literal["eigen act 2"] = "eigen act 2"
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
        InputError: it cannot be read, is no such file, or is not as it was written.
    """
    with explained("read", path, _ANOTHER_FILE):
        if not path.exists():
            return None
        content = path.read_bytes()
    try:
        known = json.loads(content)
        if isinstance(known, dict) and known.get("format") == _UNCHECKED:
            return ActLedger.model_validate({**known, "format": "eigen act 2"})
        if isinstance(known, dict) and "run" in known:
            known = parse_checksummed(content)
        return ActLedger.model_validate(known)
    except DamagedFileError as error:
        raise InputError(
            f"{path} {error}: it was changed since orders were last kept in it, and orders by it may be wrong. Put "
            "back a copy of it, or begin anew with --ledger and another file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no ledger of orders: move it away, or name another with --ledger.") from error


def write_ledger(ledger: ActLedger, path: Path) -> None:
    """Replace the file as a whole, with its checksum; raise `InputError` if it cannot be written."""
    with explained("write", path, _ANOTHER_FILE), replacing(path) as target:
        target.write(checksummed(ledger.model_dump(mode="json")))
