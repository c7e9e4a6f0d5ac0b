"""The evaluation log of a store: a look is a result of agents on days of prices, which verdicts on these days count.

A look is a small object in the store, created once and never changed, so several machines can add looks. It stays when
its run is removed. Each look is also in an entry of a chain: numbered objects that are created once, each with the
SHA-256 of the previous entry. If a look is changed or deleted, its entry reveals that, and the look still counts. If an
entry is changed or deleted, the next entry reveals that; for the newest entry, `Head` does. The first entry also lists
the looks from before the chain existed. Functions raise `InputError` and `StoreUnavailableError` as `Store` does.
"""

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple, Self, TypeVar

import torch
from pydantic import Field, ValidationError

from eigen_core.checkpoint.integrity import CONFIG_NAME, Damage, in_words, json_sha256
from eigen_core.checkpoint.store import (
    CHAIN_HEAD,
    EVALUATION_CHAIN,
    EVALUATION_LOG,
    MissingObjectError,
    Store,
    StoredObject,
    StoreUnavailableError,
)
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.common.files import replacing
from eigen_core.common.process import default_cache_root
from eigen_core.common.records import Record, Words
from eigen_core.config import Config

logger = logging.getLogger(__name__)

_NAME = re.compile(rf"{EVALUATION_LOG}(\d{{4}}-\d{{2}}-\d{{2}})_(\d{{4}}-\d{{2}}-\d{{2}})_[0-9a-f]{{16}}\.json")
_ENTRY = re.compile(rf"{EVALUATION_CHAIN}\d{{8}}\.json")
# The first entry lists all earlier looks, so it is the largest object.
_MOST_BYTES = 2**24
_READERS = 16
# If several processes add an entry at once, one succeeds and the others retry.
_ATTEMPTS = 1_000
LAST = 1_000_000
"""The greatest number of an entry: each missing one counts as a look, so a forged number must not make up millions."""
_Number = Annotated[int, Field(ge=0, le=LAST)]

_Kind = TypeVar("_Kind", bound=Record)


class Head(Record):
    """Number and SHA-256 of the chain's newest entry, as the object `CHAIN_HEAD` in the store and as a file on each
    machine that added a look; number 0 and an empty hash before the first entry."""

    ledger: str
    """Random identifier of the log, drawn when the log was created: a new store at the same URL has another one."""
    number: _Number
    sha256: str


def _stored_head(store: Store) -> Head | None:
    return _parsed(Head, _contents(store, [CHAIN_HEAD]).get(CHAIN_HEAD, b""))


def _copied_head(store: Store) -> Head | None:
    try:
        return _parsed(Head, _copy_of(store).read_bytes())
    except OSError:
        return None


def _lost_head(store: Store) -> Head | None:
    """Return the copy here of a head that the store has lost; None if the store's log is new.

    The log is not new if the store has another file of it, or a run that is older than the copy.
    """
    copied = _copied_head(store)
    if copied is None:
        return None
    copy = StoredObject("", 0, datetime.fromtimestamp(_copy_of(store).stat().st_mtime, UTC))
    configs = (store.stat(f"{folder}/{CONFIG_NAME}") or copy for folder in store.folders(""))
    is_begun = store.objects(EVALUATION_LOG) or _names(store, EVALUATION_CHAIN, _ENTRY)
    return copied if is_begun or any(config.modified < copy.modified for config in configs) else None


def _head_or_new(store: Store) -> Head:
    found = _stored_head(store)
    if found is not None:
        return found
    lost = _lost_head(store)
    # With another identifier, so that the damage stays known.
    head = Head(ledger=uuid.uuid4().hex, number=lost.number if lost else 0, sha256=lost.sha256 if lost else "")
    content = head.model_dump_json().encode()
    # If several processes create the head at once, one succeeds.
    if not store.create(CHAIN_HEAD, content):
        found = _stored_head(store)
        if found is None:  # It exists and cannot be parsed.
            store.put(CHAIN_HEAD, content)
    return found or head


def _keep_head(store: Store, head: Head) -> None:
    """Write the head to the store, and a copy to this machine; if only the copy fails, log a warning."""
    content, path = head.model_dump_json().encode(), _copy_of(store)
    store.put(CHAIN_HEAD, content)
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        logger.warning(
            "Make %s writable (%s): without the evaluation log's hash there, deletions may go unnoticed.", path, error
        )


def _copy_of(store: Store) -> Path:
    return default_cache_root() / "ledgers" / f"{_sha256(store.url.encode())}.json"


class Look(Record):
    """A result of agents on the days from `first` to `last` (YYYY-MM-DD), of the run that is named `run`."""

    first: str
    last: str
    symbols: tuple[str, ...]
    """Traded symbols: the same days of the same symbols are the same data, whatever file they came from."""
    agent: str
    """SHA-256 of the agents' weights."""
    settings: str
    """SHA-256 of the settings of `trading` and `account`, and of whether the agents trade one common portfolio."""
    run: Words
    sharpe: float | None
    """Daily Sharpe ratio; None: it is undefined, or the look was added before the agents played."""

    @property
    def name(self) -> str:
        """Name of its object in a store; the same agents, settings, days and symbols give the same name."""
        identity = json.dumps([self.first, self.last, sorted(self.symbols), self.agent, self.settings])
        return f"{EVALUATION_LOG}{self.first}_{self.last}_{_sha256(identity.encode())[:16]}.json"


class _Entry(Record):
    number: _Number
    previous: str
    """SHA-256 of the entry before this one; empty in the first."""
    look: Look
    before: Mapping[str, str] = {}
    """Only in the first entry: SHA-256 of each look from before the chain existed, by the look's name."""
    ledger: str = ""
    """See `Head`; empty in entries that earlier versions of Eigen wrote."""


@dataclass(frozen=True)
class Looks:
    """Result of `looks_at`: the looks at any of its days and any of its symbols.

    Attributes:
        known: looks whose content is known, one for each `agent`, `settings` and days, in the order of their names.
        unreadable: number of looks that were changed or deleted, and whose content is in no entry of the chain.
        damages: all defects of the log, which may concern looks at other days.
    """

    known: tuple[Look, ...]
    unreadable: int
    damages: tuple[Damage, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.damages:
            return ()
        return (
            f"The evaluation log is damaged: {in_words([*self.damages])}. Missing entries count as looks, which may "
            "make the verdict too strict: restore the files from a copy of the store.",
        )

    @property
    def count(self) -> int:
        """Number of looks that differ in agents, settings or days, plus the number of unreadable ones."""
        return len(self.known) + self.unreadable

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(sorted({look.run for look in self.known}))

    @property
    def sharpes(self) -> tuple[float, ...]:
        return tuple(look.sharpe for look in self.known if look.sharpe is not None)


def record_look(store: Store, look: Look) -> None:
    """Add a look to the log, unless the log has one of the same name."""
    if store.stat(look.name) is not None:
        return
    # Before the look, with which the store of a new log would not be empty.
    ledger = _head_or_new(store).ledger
    if not store.create(look.name, look.model_dump_json().encode()):
        return
    for _ in range(_ATTEMPTS):
        last = _newest_entry(store, ledger)
        if last.number == LAST:
            raise InputError(
                f"The evaluation log in {store.url} names entry {LAST:,}, which no log reaches: restore {CHAIN_HEAD} "
                f"and {EVALUATION_CHAIN} from a copy of the store."
            )
        earlier = _contents(store, _names(store, EVALUATION_LOG, _NAME)) if last.number == 0 else {}
        before = {name: _sha256(earlier[name]) for name in sorted(earlier) if name != look.name}
        entry = _Entry(number=last.number + 1, previous=last.sha256, look=look, before=before, ledger=ledger)
        written = entry.model_dump_json().encode()
        if store.create(_entry_name(entry.number), written):
            _keep_head(store, Head(ledger=ledger, number=entry.number, sha256=_sha256(written)))
            return
    raise StoreUnavailableError(
        f"{store.url}: other processes kept adding looks to the evaluation log: run the command again."
    )


def _newest_entry(store: Store, ledger: str) -> Head:
    """Return the newest entry that the chain, the stored head or its copy here names; number 0: there is no entry."""
    heads = [head for head in (_stored_head(store), _copied_head(store)) if head is not None and head.ledger == ledger]
    newest = max((name for name in _names(store, EVALUATION_CHAIN, _ENTRY) if _number(name) <= LAST), default=None)
    if newest is not None:
        sha256 = _sha256(_contents(store, [newest]).get(newest, b""))
        heads.append(Head(ledger=ledger, number=_number(newest), sha256=sha256))
    # At equal numbers, `max` takes a head's hash, which is that of the entry as it was written.
    return max(heads, key=lambda head: head.number, default=Head(ledger=ledger, number=0, sha256=""))


def looks_at(store: Store, symbols: Sequence[str], first: str, last: str) -> Looks:
    """Return the looks at any of the `symbols` on any day from `first` to `last` (YYYY-MM-DD), and defects of the log.

    The same agents with the same settings on other days are another look, since one can choose among the days.
    Looks that were changed or deleted are read from the chain. A lost look whose days are unknown counts for all days.
    """
    ledger = _EvaluationLog.read(store)
    known: dict[tuple[str, ...], Look] = {}
    for _, look in sorted(ledger.looks.items()):
        if not set(symbols).isdisjoint(look.symbols) and look.first <= last and look.last >= first:
            known.setdefault((look.agent, look.settings, look.first, look.last), look)
    unreadable = ledger.unknown
    for name in ledger.unreadable:
        dates = _NAME.fullmatch(name)
        unreadable += not (dates and (dates[1] > last or dates[2] < first))
    return Looks(tuple(known.values()), unreadable, ledger.damages)


def evaluation_log_damages(store: Store) -> tuple[Damage, ...]:
    return _EvaluationLog.read(store).damages


class _EvaluationLog(NamedTuple):
    looks: Mapping[str, Look]
    """Looks as they were written, by name."""
    unreadable: Sequence[str]
    """Names of looks whose content is lost."""
    unknown: int
    """Number of looks whose name is lost too."""
    damages: tuple[Damage, ...]

    @classmethod
    def read(cls, store: Store) -> Self:
        # Read before the entries, since an entry is written before its head.
        stored, copied = _stored_head(store), _copied_head(store)
        listed = _names(store, EVALUATION_CHAIN, _ENTRY)
        lost_head = _lost_head(store) if stored is None else None
        # A log that another process has begun meanwhile has its first head before its first look.
        named = stored or _stored_head(store)
        missing = lost_head if named is None else None
        known = missing or named
        heads = [head for head in (stored, copied) if known and head and head.ledger == known.ledger]
        entries, lost = _chain(_contents(store, [name for name in listed if _number(name) <= LAST]), heads)
        chained = {entry.look.name: entry.look for entry in entries}
        before = {name: digest for entry in entries for name, digest in entry.before.items() if _NAME.fullmatch(name)}
        # A look is written before its entry, so the looks of all listed entries exist by now.
        names = {*(found.name for found in store.objects(EVALUATION_LOG)), *chained, *before}
        contents = _contents(store, sorted(names))
        looks, alone = dict(chained), 0
        unreadable: list[str] = []
        damages: list[Damage] = []
        for name in sorted(names):
            content = contents.get(name)
            if content is not None and before.get(name, _sha256(content)) == _sha256(content):
                look = _parsed(Look, content)
                if look is not None and look.name == name and chained.get(name, look) == look:
                    looks[name] = look
                    alone += name not in chained and name not in before
                    continue
            if name not in chained:
                unreadable.append(name)
            changed = "was deleted" if content is None else "was changed"
            damages.append(Damage(None, name, f"{changed} and counts as a look", name))
        for numbers in lost:
            first, last = _entry_name(numbers[0]), _entry_name(numbers[-1])
            name = first if first == last else f"{first} to {last}"
            damages.append(Damage(None, name, "was changed or deleted", first))
        damages += [
            Damage(None, name, f"has a number above {LAST:,}, which no log reaches, and counts as a look", name)
            for name in listed
            if _number(name) > LAST
        ]
        begun = {entry.ledger for entry in entries} - {""} | ({missing.ledger} if missing else set())
        without_head = bool(begun) and (named is None or begun != {named.ledger})
        if without_head:
            damages.append(Damage(None, CHAIN_HEAD, "was changed or deleted and counts as a look", CHAIN_HEAD))
        # The look of a lost entry is most likely one that no other entry names.
        unknown = max(0, sum(map(len, lost)) - alone) + without_head + sum(_number(name) > LAST for name in listed)
        return cls(looks, unreadable, unknown, tuple(damages))


def _chain(contents: Mapping[str, bytes], heads: Sequence[Head]) -> tuple[list[_Entry], list[range]]:
    """Return the intact entries, in order, and the numbers of entries that were changed or deleted."""
    entries: list[_Entry] = []
    lost: list[range] = []
    expected: dict[int, set[str]] = {}
    for head in heads:
        if head.number:
            expected.setdefault(head.number, set()).add(head.sha256)
    numbers = sorted({*map(_number, contents), *expected})
    for place in range(len(numbers) - 1, -1, -1):
        number, before = numbers[place], numbers[place - 1] if place else 0
        content = contents.get(_entry_name(number), b"")
        entry = _parsed(_Entry, content)
        # A look from the store is not trusted: it must not name another file.
        if entry is not None and not _NAME.fullmatch(entry.look.name):
            entry = None
        if entry is not None and entry.number == number and expected.get(number, set()) <= {_sha256(content)}:
            entries.append(entry)
            expected.setdefault(number - 1, set()).add(entry.previous)
        else:
            lost.append(range(number, number + 1))
        if before < number - 1:
            lost.append(range(before + 1, number))
    return entries[::-1], lost[::-1]


def _names(store: Store, folder: str, form: re.Pattern[str]) -> list[str]:
    return [found.name for found in store.objects(folder) if form.fullmatch(found.name)]


def _entry_name(number: int) -> str:
    return f"{EVALUATION_CHAIN}{number:08d}.json"


def _number(entry: str) -> int:
    return int(entry.removeprefix(EVALUATION_CHAIN).removesuffix(".json"))


def _contents(store: Store, names: Sequence[str]) -> dict[str, bytes]:
    def content(name: str) -> bytes | None:
        with suppress(MissingObjectError):
            return store.read(name, _MOST_BYTES)
        return None

    with ThreadPoolExecutor(_READERS) as readers:
        read = dict(zip(names, readers.map(content, names), strict=True))
    return {name: found for name, found in read.items() if found is not None}


def _parsed(kind: type[_Kind], content: bytes) -> _Kind | None:
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def keep_look(
    store: Store,
    run: str,
    config: Config,
    days: tuple[str, str, Sequence[str]],
    weights: torch.Tensor,
    *,
    one_portfolio: bool = False,
    sharpe: float | None = None,
) -> None:
    """Add a result of agents of a run to the log, as a look.

    Args:
        store, run, config: store, name and configuration of the run, with the account settings of this result.
        days: first and last day, or bar (its date counts), and the symbols that can be traded.
        weights: of the agents' networks, float32 `[agents, parameters]`.
        one_portfolio: the agents trade one common portfolio.
        sharpe: daily Sharpe ratio; None: it is undefined, or the agents have not played yet.
    """
    # Of the end of a bar the date.
    first, last, symbols = days[0][:10], days[1][:10], days[2]
    rules = config.model_dump(mode="json", include={"trading", "account"})
    agent, settings = tensors_sha256({"weights": weights.cpu()}), json_sha256({**rules, "one_portfolio": one_portfolio})
    record_look(
        store,
        Look(first=first, last=last, symbols=tuple(symbols), agent=agent, settings=settings, run=run, sharpe=sharpe),
    )
