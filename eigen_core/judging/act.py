"""`eigen act`: orders of a run's champion (its best agent) for the next day, and the ledger: a file of these orders."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError
from torch import Tensor

from eigen_core.checkpoint.export import CHAMPION, stored_weights
from eigen_core.checkpoint.integrity import DamagedFileError, checksummed, parse_checksummed
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store_location import command_for
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, make_folder, open_regular_file, write_file
from eigen_core.common.process import default_cache_root
from eigen_core.config import AccountConfig, Config
from eigen_core.config.loading import changed
from eigen_core.config.registry import Date
from eigen_core.config.stored import FORMAT_KEY
from eigen_core.generation.state import resolve_device
from eigen_core.judging.backtest import backtest_class
from eigen_core.judging.orders import NextOrders, Order, decision_of, decisions_among
from eigen_core.judging.run_backtests import agents_on_market, config_to_judge, newest_of_run, require_shape
from eigen_core.machine.performance import computing_threads
from eigen_core.market import Panel
from eigen_core.market.build import TrainingDays, inference_panel
from eigen_core.runs.handle import Run

logger = logging.getLogger(__name__)

LEDGER_NAME = "act.json"
_UNCHECKED: Literal["eigen act 1"] = "eigen act 1"
"""`format` of the ledgers that earlier versions of Eigen wrote, which have no checksum."""
_CHECKED_SINCE = 7
"""Format version of the configuration from which on runs began when all ledgers had a checksum."""
_ANOTHER_FILE = "give another file with --ledger"

KnownPrices = tuple[float | None, float | None, float | None]
"""Open, high and close of an asset on a day; None if missing."""


class ActLedger(BaseModel):
    """The orders that `act` issued for a champion; dates are YYYY-MM-DD.

    Attributes:
        champion, champion_generation: SHA-256 of its weights; generation in which the run found it.
        account: settings of the account that trades the orders.
        began: date of the first orders.
        days: by date, the orders issued after the close of that day.
        prices: by date and symbol, as the ledger first stored them, from the first of the `market.window` days that the
            champion observed for its first orders; empty in ledgers of earlier versions of Eigen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["eigen act 1", "eigen act 2"] = "eigen act 2"
    run: str
    champion: str
    champion_generation: int
    account: AccountConfig
    began: str
    days: dict[str, tuple[Order, ...]]
    prices: dict[str, dict[str, KnownPrices]] = {}

    @property
    def last_date(self) -> str:
        return max(self.days, default=self.began)


def read_ledger(path: Path, begun: object) -> ActLedger | None:
    """Return the ledger in a file; None if the file does not exist.

    `begun` is the format version of the configuration with which the run began, as it is stored. A ledger without a
    checksum is accepted only if `begun` is older than checksums, and this machine has not written one to the file.

    Raises:
        InputError: the file cannot be read, is no ledger, or does not have the checksum that it contains.
    """
    with explained("read", path, _ANOTHER_FILE):
        try:
            with open_regular_file(path) as file:
                content = file.read()
        except FileNotFoundError:
            return None
    try:
        known = json.loads(content)
        if not isinstance(known, dict) or "run" not in known:
            raise ValueError("no ledger")
        if known.get("format") != _UNCHECKED:
            known = parse_checksummed(content)
        elif type(begun) is not int or begun >= _CHECKED_SINCE or _mark_of(path).exists():
            raise DamagedFileError("has no checksum")
        return ActLedger.model_validate(known)
    except DamagedFileError as error:
        raise InputError(
            f"{path} {error}: it was changed since the last orders were written to it, so new orders could be wrong. "
            "Restore a copy of it, or start another ledger with --ledger."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no ledger of orders: move it away, or name another file with --ledger.") from error


def _mark_of(path: Path) -> Path:
    """Return a file that exists if this machine has written a checksum to the ledger `path`."""
    return default_cache_root() / "ledgers" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.act"


def write_ledger(ledger: ActLedger, path: Path) -> None:
    """Write the ledger with a checksum, replacing the file atomically; raise `InputError` if it cannot be written."""
    write_file(path, checksummed({**ledger.model_dump(mode="json"), "format": "eigen act 2"}), _ANOTHER_FILE)
    mark = _mark_of(path)
    try:
        make_folder(mark.parent)
        mark.touch()
    except OSError as error:
        logger.warning("Make %s writable (%s): without it, a ledger may lose its checksum unnoticed.", mark, error)


_NAMES = ("open", "high", "close")
_CLOSE = 2
# Relative tolerances: prices and money may be rounded when they are written.
_SAME_PRICE, _SAME_MONEY = 1e-9, 1e-6
_SAME_FACTOR = 1e-4


@dataclass(frozen=True)
class Difference:
    """A day whose orders in the ledger differ from those of the replay (`reconcile`).

    `issued` and `replayed` are these orders as `decision_of` writes them; `missed`: `act` was not called for the day.
    """

    date: str
    issued: str | None
    replayed: str | None
    missed: bool


@dataclass(frozen=True)
class SizeDifference:
    """An order for which the ledger and the replay of `reconcile` have different amounts of money."""

    date: str
    symbol: str
    issued: float
    replayed: float


@dataclass(frozen=True)
class Correction:
    """Prices of a symbol that changed since the ledger first stored them.

    Attributes:
        dates: days on which any of open, high and close changed, in order.
        price: "close" if the close changed on the first of `dates`, else "open" or "high".
        then, now: this price on the first of `dates`, in the ledger and in the present prices; None if missing.
        factor: new / old close where it is the same on all `dates`, two or more, as after a stock split; else None.
    """

    symbol: str
    dates: tuple[str, ...]
    price: str
    then: float | None
    now: float | None
    factor: float | None


@dataclass(frozen=True)
class Reconciliation:
    """What `reconcile` found on all days before the last; `agreeing`: number of days whose orders are the same."""

    agreeing: int
    differences: tuple[Difference, ...]
    sizes: tuple[SizeDifference, ...]
    corrections: tuple[Correction, ...]


def reconcile(kept: ActLedger, found: NextOrders, panel: Panel) -> Reconciliation:
    """Compare the ledger `kept` with the present prices, in `panel`, and with a replay on them, `found`."""
    differences: list[Difference] = []
    sizes: list[SizeDifference] = []
    agreeing = 0
    lots = {one.symbol: one.lot_size for one in panel.instruments}
    earlier = sorted({day for day in (*kept.days, *found.decided) if day < found.date})
    for day in earlier:
        issued = decision_of(kept.days.get(day, ()))
        compared = Difference(day, issued, found.decided.get(day), missed=day not in kept.days)
        if compared.missed or compared.issued != compared.replayed:
            differences.append(compared)
            continue
        before = len(sizes)
        for order, replayed in zip(decisions_among(kept.days[day]), found.money[day].values(), strict=True):
            # At a fill price other than the close an order may be one lot larger, or any money if volumes limit it.
            step = lots.get(order.symbol) or float(kept.account.shares == "whole")
            tolerance = _SAME_MONEY * order.money + order.price * step
            if abs(replayed - order.money) > tolerance and kept.account.participation is None:
                sizes.append(SizeDifference(day, order.symbol, order.money, replayed))
        agreeing += len(sizes) == before
    return Reconciliation(agreeing, tuple(differences), tuple(sizes), _corrections(kept.prices, panel))


def prices_of(panel: Panel, first: int) -> dict[str, dict[str, KnownPrices]]:
    """Return open, high and close of the tradable symbols by date and symbol, from day number `first` of a panel on."""
    grid = np.stack([panel.open[first:], panel.high[first:], panel.close[first:]], axis=-1)
    return {
        str(date): {
            symbol: (_known(own[0]), _known(own[1]), _known(own[2]))
            for symbol, own in zip(panel.symbols, prices.tolist(), strict=False)
            if not np.isnan(own).all()
        }
        for date, prices in zip(panel.dates[first:], grid, strict=True)
    }


def _known(price: float) -> float | None:
    return None if np.isnan(price) else float(price)


def _corrections(then: Mapping[str, Mapping[str, KnownPrices]], panel: Panel) -> tuple[Correction, ...]:
    now, dates, found = prices_of(panel, 0), sorted(then), []
    for symbol in sorted({symbol for date in dates for symbol in (*then[date], *now.get(date, ()))}):
        before, after = (
            np.array([known.get(date, {}).get(symbol, (None,) * len(_NAMES)) for date in dates], dtype=np.float64)
            for known in (then, now)
        )
        same = np.isclose(after, before, rtol=_SAME_PRICE, atol=0.0, equal_nan=True)
        changed = np.flatnonzero(~same.all(axis=1))
        if not len(changed):
            continue
        first = changed[0]
        place = next(place for place in (_CLOSE, 0, 1) if not same[first, place])
        ratios = after[changed, _CLOSE] / before[changed, _CLOSE]
        alike = len(changed) > 1 and np.allclose(ratios, ratios[0], rtol=_SAME_FACTOR, atol=0.0)
        factor = float(np.median(ratios)) if alike and not same[first, _CLOSE] else None
        days = tuple(dates[day] for day in changed)
        found.append(
            Correction(symbol, days, _NAMES[place], _known(before[first, place]), _known(after[first, place]), factor)
        )
    return tuple(sorted(found, key=lambda one: one.dates[0]))


@dataclass(frozen=True)
class Act:
    """Result of `act`: the champion's `next` orders, and its ledger's `champion` and `began` (see `ActLedger`).

    `session`: when the next session of `market.calendar` opens and closes (UTC); None if that is `prices` or ends.
    """

    run: str
    champion: str
    began: str
    next: NextOrders
    reconciliation: Reconciliation
    ledger: Path
    session: tuple[str, str] | None


def act(
    store: str,
    run: str,
    *,
    data: str | None = None,
    date: str | None = None,
    ledger: Path | None = None,
    settings: Iterable[str] = (),
) -> Act:
    """Return the orders of a run's champion after the close of a day, and write them to the ledger.

    Args:
        data: path of newer prices; None: `EIGEN_DATA`, or else the path that the run was trained with.
        date: the day (YYYY-MM-DD); None: the last day of the prices.
        ledger: file of the ledger; None: `act.json` in the run's local folder.
        settings: changeable settings of the market, as market.KEY=VALUE, by which the prices are read; with the first
            orders also those of the account, as account.KEY=VALUE, which the ledger keeps.

    The account begins on the ledger's first date. The champion trades all days since then again, on the present prices:
    the replay. Orders that the ledger already has stay unchanged.

    Raises:
        InputError: there is no such run, it has no champion, or its task has no prices; the prices are not of the run's
            symbols and training days; the ledger belongs to another champion or account, or has orders of later days.
        StoreUnavailableError: the store does not answer.
    """
    try:
        TypeAdapter(Date | None).validate_python(date)
    except ValidationError:
        raise InputError(f"'{str(date)[:40]}' is no date: write it as 2024-12-31.") from None
    opened, settings = Run.open(store, run), tuple(settings)
    config = config_to_judge(opened, settings, data)
    contents, manifest = newest_of_run(opened)
    weights = stored_weights(contents, manifest, CHAMPION)
    champion = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    path = ledger or opened.location.root / run / LEDGER_NAME
    kept = read_ledger(path, contents.config().get(FORMAT_KEY, 1))
    if kept is not None:
        _require_ledger(kept, path, champion, manifest, date)
        if config.account != kept.account and any(text.strip().startswith("account.") for text in settings):
            raise InputError(f"{path} began with other settings of the account: leave them out, or {_ANOTHER_FILE}.")
        config = changed(config, {"account": kept.account.model_dump()})
    panel = _panel(opened, config, contents, manifest, date)
    today = str(panel.dates[-1])
    if kept is None:
        kept = ActLedger(
            run=run,
            champion=champion,
            champion_generation=manifest.champion_generation,
            account=config.account,
            began=today,
            days={},
        )
    found = _orders(config, panel, weights, kept, path)
    reconciliation = reconcile(kept, found, panel)
    if kept.format == _UNCHECKED:
        logger.warning("%s had no checksum, since an earlier version of Eigen wrote it. Now it has one.", path)
    if today not in kept.days:
        # Prices that the agent observed or traded stay as the ledger first stored them.
        first = max(0, int(np.searchsorted(panel.dates, np.datetime64(kept.began))) - config.market.window + 1)
        prices = {**prices_of(panel, first), **kept.prices}
        write_ledger(kept.model_copy(update={"days": {**kept.days, today: found.orders}, "prices": prices}), path)
    elif kept.format == _UNCHECKED:
        write_ledger(kept, path)
    calendar, session = panel.calendar, None
    if calendar is not None and (later := calendar.after(panel.dates[-1])).size:
        session = f"{calendar.opens[later[0]]}Z", f"{calendar.closes[later[0]]}Z"
    return Act(run, champion, kept.began, found, reconciliation, path, session)


def _require_ledger(kept: ActLedger, path: Path, champion: str, manifest: Manifest, date: str | None) -> None:
    if kept.champion != champion:
        raise InputError(
            f"{path} belongs to the champion of run '{kept.run}' from generation {kept.champion_generation}, and this "
            f"champion is from generation {manifest.champion_generation}: name another file with --ledger."
        )
    last = kept.last_date
    if date is not None and date < last[:10]:
        raise InputError(f"{path} has orders up to {last}, which is after {date}: give {last} or a later date.")


def _panel(run: Run, config: Config, contents: RunContents, manifest: Manifest, date: str | None) -> Panel:
    description = contents.document(manifest, CHAMPION)
    known: Mapping[str, JsonValue] = description if isinstance(description, dict) else {}
    try:
        symbols, features = (
            TypeAdapter(tuple[str, ...]).validate_python(known.get(key)) for key in ("symbols", "features")
        )
        training = TypeAdapter(TrainingDays | None).validate_python(known.get("training"))
    except ValidationError as error:
        name = run.name
        raise InputError(
            f"{CHAMPION}.json of run '{name}' has no valid symbols, features or training days: find damaged files with "
            f"`{command_for('verify', name, run.location.store.url)}`."
        ) from error
    if training is None:
        # Runs of earlier versions stored no training days: derive these from the prices that they were trained on.
        training = TrainingDays.of(agents_on_market(run, run.config_to_resume(), CHAMPION)[2])
    return inference_panel(config, training, symbols, features, date)


def _orders(config: Config, panel: Panel, weights: Tensor, kept: ActLedger, path: Path) -> NextOrders:
    dates = [str(day) for day in panel.dates]
    if dates[-1] < kept.last_date:
        raise InputError(
            f"The prices end on {dates[-1]}, but {path} has orders up to {kept.last_date}: give newer prices."
        )
    if kept.began not in dates:
        raise InputError(f"{path} begins on {kept.began}, a day without prices: give prices that include this day.")
    with computing_threads(config.threads):
        backtest = backtest_class(config)(config, panel, resolve_device(config.device))
        require_shape(weights, (backtest.parameters,), kept.run)
        return backtest.next_orders(weights, dates.index(kept.began))
