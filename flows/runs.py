"""Opening, continuing and describing the runs of a store. No Prefect in here."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from eigen_core.checkpoint import RunDirectory, list_runs
from eigen_core.checkpoint.folder import folder_name
from eigen_core.config import Config
from eigen_core.config.loading import config_from_values, differing_keys
from eigen_core.errors import InputError
from eigen_core.records import GenerationRecord, HoldoutResult, Telemetry

logger = logging.getLogger(__name__)

RunState = Literal["running", "finished", "unfinished", "blocked"]

_CONTINUED_NAME = "continued.json"
_HOLDOUT_NAME = "holdout.json"
_CHANGEABLE_KEYS = frozenset({"generations", "threads", "device", "population.group_size"})
_CHANGEABLE_SECTIONS = ("checkpoint.", "reporting.")


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        run: its name.
        state: running (a process holds its lock), finished, unfinished, or blocked.
        generation: last completed generation; 0: none.
        config: the configuration with which it was last started or continued.
        store: absolute path of the folder that holds the runs.
        history, telemetry: one record per completed generation.
        holdout: the champion on the holdout days, once the run has all its generations.
    """

    run: str
    state: RunState
    generation: int
    config: Config
    store: Path
    history: tuple[GenerationRecord, ...]
    telemetry: tuple[Telemetry, ...]
    holdout: HoldoutResult | None

    @property
    def holdout_is_played(self) -> bool:
        """Whether the holdout days were played after the last generation, or there are none."""
        return self.holdout is not None or self.config.market.holdout_days == 0


def run_exists(store: str, name: str) -> bool:
    """Whether the store holds a run of this name."""
    return name in list_runs(store)


def open_or_create(config: Config, name: str, *, must_exist: bool = False) -> RunDirectory:
    """Return the run `name` in the store of `config`, made if it is missing.

    Raises:
        InputError: the store or the name cannot be used; the run is missing and must exist; or it was begun with other
            settings, so that continuing it would not be the same run.
    """
    store = config.checkpoint.store
    if not must_exist and not run_exists(store, name):
        return RunDirectory.create(store, name, config.model_dump(mode="json"))
    run = RunDirectory.open(store, name)
    require_same_run(run, config)
    return run


def require_same_run(run: RunDirectory, config: Config) -> None:
    """Raise `InputError` if `config` differs from the run's in more than may change while a run goes on."""
    begun = _config_of(run, run.config)
    differing = [key for key in differing_keys(begun, config) if not _may_change(key)]
    if differing:
        shown = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise InputError(
            f"Run '{run.name}' exists and was begun with other settings: {shown} differ{'s' * (len(differing) == 1)}. "
            f"Continue it as it is with `eigen resume {run.name}`, or choose another name."
        )


def _may_change(key: str) -> bool:
    return key in _CHANGEABLE_KEYS or key.startswith(_CHANGEABLE_SECTIONS)


def latest_config(run: RunDirectory) -> Config:
    """Return the configuration with which the run was last started or continued.

    Raises:
        InputError: it cannot be read.
    """
    path = run.path / _CONTINUED_NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return _config_of(run, run.config)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): remove it to continue as the run was begun.") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no configuration: remove it to continue as the run was begun.")
    return _config_of(run, document)


def remember_config(run: RunDirectory, config: Config) -> None:
    """Note that the run, which must be locked, goes on with `config`.

    The file that it was begun with stays as it is, since every manifest carries its hash.
    """
    if latest_config(run) == config:
        return
    _write_note(run, _CONTINUED_NAME, config)


def remember_holdout(run: RunDirectory, result: HoldoutResult) -> None:
    """Keep what the champion of the run, which must be locked, did on the holdout days."""
    _write_note(run, _HOLDOUT_NAME, result)


def holdout_of(run: RunDirectory, generation: int) -> HoldoutResult | None:
    """Return the holdout's result after `generation`; None if it was not played then."""
    try:
        result = HoldoutResult.model_validate_json((run.path / _HOLDOUT_NAME).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("Run '%s': %s is skipped (%s).", run.name, _HOLDOUT_NAME, error)
        return None
    return result if result.generation == generation else None


def _write_note(run: RunDirectory, name: str, note: BaseModel) -> None:
    temporary = run.path / f".{name}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(note.model_dump_json(indent=2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(run.path / name)


def _config_of(run: RunDirectory, values: Mapping[str, Any]) -> Config:
    try:
        return config_from_values(values)
    except InputError as error:
        raise InputError(f"The configuration of run '{run.name}' in {run.path} cannot be used. {error}") from error


def status_of(store: str, name: str) -> RunStatus:
    """Return how far a run is, from its newest generation whose records are whole. Weights and replay are not read.

    Raises:
        InputError: there is no such run, or its configuration cannot be read.
    """
    run = RunDirectory.open(store, name)
    config = latest_config(run)
    # A store may have been moved since.
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": store})})
    history, telemetry = _records_of(run)
    generation = history[-1].generation if history else 0
    state: RunState = "unfinished"
    if run.is_locked():
        state = "running"
    elif generation >= config.generations:
        state = "finished"
    return RunStatus(name, state, generation, config, run.store, history, telemetry, holdout_of(run, generation))


def _records_of(run: RunDirectory) -> tuple[tuple[GenerationRecord, ...], tuple[Telemetry, ...]]:
    for generation in reversed(run.generations()):
        try:
            history = [GenerationRecord.model_validate(row) for row in _document(run, generation, "history")]
            telemetry = [Telemetry.model_validate(row) for row in _document(run, generation, "telemetry")]
        except (InputError, ValidationError) as error:
            logger.warning("Run '%s': generation %d is skipped (%s).", run.name, generation, error)
            continue
        return tuple(history), tuple(telemetry)
    return (), ()


def _document(run: RunDirectory, generation: int, stem: str) -> list[Any]:
    """Return one of a generation's documents, verified against its manifest."""
    name = f"{stem}.json"
    path = run.path / folder_name(generation) / name
    try:
        entry = run.manifest(generation).entry(name)
        content = path.read_bytes()
    except (KeyError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise InputError(f"{path} does not match its SHA-256.")
    document = json.loads(content)
    if not isinstance(document, list):
        raise InputError(f"{path} holds no records.")
    return document
