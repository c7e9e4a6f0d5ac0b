"""The ledger of looks: which days of which prices were looked at with which agents, kept in the store of the runs.

A look stays when its run is removed. It is a small object that is created once, so several machines can look at once.
"""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from eigen_core.records import Record
from eigen_core.store import Store, created
from eigen_core.store.location import LOOKS

logger = logging.getLogger(__name__)

_NAME = re.compile(rf"{LOOKS}(\d{{4}}-\d{{2}}-\d{{2}})_(\d{{4}}-\d{{2}}-\d{{2}})_[0-9a-f]{{16}}\.json")
_LIMIT = 2**20
_DIGITS = 16


class Look(Record):
    """A result that was looked at: an agent on a span of days."""

    first: str
    """First day of the span (YYYY-MM-DD)."""
    last: str
    """Its last day."""
    symbols: tuple[str, ...]
    """What was traded: the same days of the same symbols are the same data, whatever file they came from."""
    agent: str
    """SHA-256 of the agents' weights."""
    settings: str
    """SHA-256 of the rules and settings that the result depends on."""
    run: str
    """The run whose agents they are."""
    sharpe: float | None
    """Sharpe ratio of a day."""

    @property
    def name(self) -> str:
        """Its name in a store; the same agent with the same settings on the same days is the same look."""
        identity = json.dumps([self.first, self.last, sorted(self.symbols), self.agent, self.settings])
        return f"{LOOKS}{self.first}_{self.last}_{hashlib.sha256(identity.encode()).hexdigest()[:_DIGITS]}.json"


@dataclass(frozen=True)
class Looks:
    """How often days were looked at.

    Attributes:
        known: one look of each agent with its settings, in the order of their names.
        unreadable: looks that cannot be read.
    """

    known: tuple[Look, ...]
    unreadable: int

    @property
    def count(self) -> int:
        """Different agents or settings; each look that cannot be read counts."""
        return len(self.known) + self.unreadable

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs whose agents they were, sorted."""
        return tuple(sorted({look.run for look in self.known}))

    @property
    def sharpes(self) -> tuple[float, ...]:
        """The Sharpe ratios of a day that are known of them."""
        return tuple(look.sharpe for look in self.known if look.sharpe is not None)


def record_look(store: Store, look: Look) -> None:
    """Keep a look; one that is known already stays as it is.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    if store.stat(look.name) is None:
        created(store, look.name, look.model_dump_json().encode())


def looks_at(store: Store, symbols: Sequence[str], first: str, last: str) -> Looks:
    """Return the looks at any day from `first` to `last` at any of the symbols.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    known: dict[tuple[str, str], Look] = {}
    unreadable = 0
    for found in store.objects(LOOKS):
        dates = _NAME.fullmatch(found.name)
        if dates and (dates[1] > last or dates[2] < first):
            continue
        look = _read(store, found.name)
        if look is None:
            unreadable += 1
        elif not set(symbols).isdisjoint(look.symbols) and look.first <= last and look.last >= first:
            known.setdefault((look.agent, look.settings), look)
    return Looks(tuple(known.values()), unreadable)


def _read(store: Store, name: str) -> Look | None:
    try:
        return Look.model_validate_json(store.read(name, _LIMIT))
    except ValidationError:
        logger.warning("%s in %s cannot be read: it counts as a look.", name, store.url)
        return None
