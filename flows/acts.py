"""The orders of a run's champion for the next day, and the account that they have led to. No Prefect in here."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue, TypeAdapter, ValidationError
from torch import Tensor

from eigen_core.backtest.interface import NextOrders, task_backtest
from eigen_core.checkpoint import CHAMPION, Manifest, RunContents, stored_weights
from eigen_core.config import Config
from eigen_core.config.values import Date
from eigen_core.errors import InputError
from eigen_core.generation.state import resolve_device
from eigen_core.market import Panel
from eigen_core.market.build import TrainingDays, inference_panel
from eigen_core.threads import computing_threads
from eigen_core.training.runs import Run
from flows.act_ledger import ActLedger, read_ledger, write_ledger
from flows.act_reconciliation import Reconciliation, prices_of, reconciled
from flows.backtests import agents_on_market, newest_of_run, require_prices

_LEDGER = "act.json"


@dataclass(frozen=True)
class Act:
    """The orders of a run's champion.

    Attributes:
        run: its name.
        champion: SHA-256 of its weights.
        began: date of the first orders.
        next: the orders, and the account that the replay of all days since then leads to.
        reconciliation: the orders that were issued on earlier days beside those of the replay.
        ledger: the file that keeps the orders.
    """

    run: str
    champion: str
    began: str
    next: NextOrders
    reconciliation: Reconciliation
    ledger: Path


def act(store: str, run: str, *, data: str | None = None, date: str | None = None, ledger: Path | None = None) -> Act:
    """Return the orders of a run's champion after a day, and keep them in the ledger.

    Args:
        store: where the run is kept.
        run: its name.
        data: newer prices; None: where the run's prices are.
        date: the day; None: the last of the prices.
        ledger: file; None: in the run's folder on this machine.

    The account begins with the first day that a ledger is asked for, and is replayed from there. On a day whose orders
    were issued before, nothing is written.

    Raises:
        InputError: there is no such run, it has no champion or plays no market; the prices do not fit; the ledger
            belongs to another champion or has later days.
        StoreUnavailableError: the store does not answer.
    """
    if date is not None:
        _require_date(date)
    config = Run.open(store, run).config_to_resume(data)
    require_prices(config, run)
    contents, manifest = newest_of_run(store, run)
    weights = stored_weights(contents, manifest, CHAMPION)
    champion = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    path = ledger or Run.open(store, run).location.root / run / _LEDGER
    kept = read_ledger(path)
    if kept is not None:
        _require_ledger(kept, path, champion, manifest, date)
        config = config.model_copy(update={"account": kept.account})
    panel = _panel(store, run, config, contents, manifest, date)
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
    reconciliation = reconciled(kept, found, panel)
    if today not in kept.days:
        # What was observed or traded on: prices as they were when they were first seen.
        first = max(0, int(np.searchsorted(panel.dates, np.datetime64(kept.began))) - config.market.window + 1)
        prices = {**prices_of(panel, first), **kept.prices}
        kept = kept.model_copy(update={"days": {**kept.days, today: found.orders}, "prices": prices})
        write_ledger(kept, path)
    return Act(run, champion, kept.began, found, reconciliation, path)


def _require_date(text: str) -> None:
    try:
        TypeAdapter(Date).validate_python(text)
    except ValidationError:
        raise InputError(f"'{text[:40]}' is no date: write it as 2024-12-31.") from None


def _require_ledger(kept: ActLedger, path: Path, champion: str, manifest: Manifest, date: str | None) -> None:
    if kept.champion != champion:
        raise InputError(
            f"{path} was begun with the champion of run '{kept.run}' of generation {kept.champion_generation}, and "
            f"this one is of generation {manifest.champion_generation}: begin anew with --ledger and another file."
        )
    if date is not None and date < kept.last:
        raise InputError(f"{path} has orders up to {kept.last}, which is after {date}: act on {kept.last} or later.")


def _panel(store: str, run: str, config: Config, contents: RunContents, manifest: Manifest, date: str | None) -> Panel:
    facts = contents.document(manifest, CHAMPION)
    known: Mapping[str, JsonValue] = facts if isinstance(facts, dict) else {}
    try:
        symbols, features = (
            TypeAdapter(tuple[str, ...]).validate_python(known.get(key)) for key in ("symbols", "features")
        )
        training = TypeAdapter(TrainingDays | None).validate_python(known.get("training"))
    except ValidationError as error:
        raise InputError(f"What run '{run}' says of its champion cannot be used: try `eigen verify {run}`.") from error
    if training is None:
        # Runs from before this was kept: the prices that they were trained on say it.
        training = TrainingDays.of(agents_on_market(store, run, Run.open(store, run).config_to_resume(), CHAMPION)[2])
    return inference_panel(config, training, symbols, features, date)


def _orders(config: Config, panel: Panel, weights: Tensor, kept: ActLedger, path: Path) -> NextOrders:
    dates = [str(day) for day in panel.dates]
    if dates[-1] < kept.last:
        raise InputError(f"The prices end on {dates[-1]}, but {path} has orders up to {kept.last}: give newer prices.")
    if kept.began not in dates:
        raise InputError(f"{path} begins on {kept.began}, of which there are no prices: give prices of that day too.")
    with computing_threads(config.threads):
        backtest = task_backtest(config, panel, resolve_device(config.device))
        return backtest.next_orders(weights, dates.index(kept.began))
