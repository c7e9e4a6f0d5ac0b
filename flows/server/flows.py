"""The Prefect flows `train` and `cleanup`, and the form in which Prefect's pages ask for the configuration of a run."""

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from eigen_core.checkpoint.store_location import store_from_environment
from eigen_core.common.process import stop_requests_raised
from eigen_core.common.text import size
from eigen_core.config import PRESET_NAMES, VARIANTS, Config, preset_values
from eigen_core.config.explain import flatten, settings
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.model import CheckpointConfig
from flows.server.flow_runs import initial_name, stop_resuming
from flows.server.prefect_internals import keep_training_without_slot
from flows.server.prefect_settings import FOLDER_VARIABLE

if folder := os.environ.get(FOLDER_VARIABLE):
    # In a temporary folder, where Prefect loads this file and its imports, a relative store would be lost.
    os.chdir(folder)

if runtime.flow_run.id is not None:
    # In a flow run's process, import now what a training needs. When the flow begins, Prefect's threads parse function
    # signatures; as models are imported, pydantic parses their sources; and before Python 3.11.8 and 3.12.2 two threads
    # that parse at the same time may raise a SystemError (github.com/python/cpython/issues/106905).
    import flows.server.training_flow  # noqa: F401


class _Form:
    """Makes the JSON schema of Prefect's form for a `Config`: without defaults, and without `MACHINE_SETTINGS`.

    A form sends every value that it shows. Defaults in it would override the chosen preset, so descriptions name them.
    A worker takes `MACHINE_SETTINGS` from its environment variables; the server refuses values that the schema lacks.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        properties = handler.resolve_ref_schema(reference)["properties"]
        for section in VARIANTS:
            properties[section] = _of_all_variants(section, properties[section], handler)
        for name, setting in _without_machine_settings(properties, ""):
            resolved = handler.resolve_ref_schema(setting)
            if "properties" in resolved:
                setting.pop("default", None)
                for inner_name, inner in _without_machine_settings(resolved["properties"], f"{name}."):
                    _without_value(inner, f"{name}.{inner_name}")
            else:
                _without_value(setting, name)
        properties["preset"]["enum"] = list(PRESET_NAMES)
        return reference


def _of_all_variants(section: str, schema: Mapping[str, Any], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return one schema of section `learner` or `evolution` with the settings of all its algorithms or methods.

    From a schema for each algorithm, Prefect's pages would choose by the names of the entered settings, most of which
    algorithms share. A rule refuses settings that the chosen algorithm lacks. It is in `then`, which the server obeys
    and the pages ignore.
    """
    key, common, models = VARIANTS[section]
    properties: dict[str, Any] = {}
    for one in schema["oneOf"]:
        for name, setting in handler.resolve_ref_schema(one)["properties"].items():
            of_all = settings()[f"{section}.{name}"]
            having = f" With {', '.join(of_all.variants)}." if of_all.variants else ""
            properties.setdefault(name, {**setting, "description": f"{of_all.meaning}{having}"})
    chosen = settings()[f"{section}.{key}"]
    properties[key] = {
        "title": key.title(),
        "description": chosen.meaning,
        "default": chosen.default,
        "enum": list(models),
    }
    return {
        "title": section.title(),
        "description": common.__doc__,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "if": {"properties": {key: {"enum": list(models)}}},
        "then": {
            "anyOf": [
                {"properties": {key: {"const": name}}, "propertyNames": {"enum": list(model.model_fields)}}
                for name, model in models.items()
            ]
        },
    }


def _without_machine_settings(properties: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Remove `MACHINE_SETTINGS` from `properties`, the settings whose keys begin with `prefix`; return the others."""
    for name in [name for name in properties if f"{prefix}{name}" in MACHINE_SETTINGS]:
        del properties[name]
    return list(properties.items())


FormConfig = Annotated[Config, _Form()]
"""`Config` as a parameter of a flow, which Prefect's pages show as a form."""


def _without_value(setting: dict[str, Any], key: str) -> None:
    if "default" in setting:
        default = setting.pop("default")
        values_shown = [f"Default: {_json(default)}"]
        if key != "preset":
            values = [(name, preset.get(key, default)) for name, preset in _presets().items()]
            values_shown += [f"{name}: {_json(value)}" for name, value in values if value != default]
        setting["description"] = f"{setting['description']} {'; '.join(values_shown)}."
    if "const" in setting:
        # The field has a single choice: a form would not let a user fill it in.
        setting["enum"] = [setting.pop("const")]
    if setting.get("type") == "boolean":
        # An untouched check box is sent as false.
        del setting["type"]
        setting["enum"] = [True, False]


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    return {name: flatten(preset_values(name)) for name in PRESET_NAMES}


def _json(value: object) -> str:
    return "empty" if value is None else json.dumps(value, ensure_ascii=False)


# Prefect takes the deployment's concurrency slot before it calls the flow.
keep_training_without_slot()


@flow(name="train", flow_run_name=initial_name, persist_result=False, on_cancellation=[stop_resuming])
def train_flow(config: FormConfig, run: str | None = None, resume: bool = False) -> State[None]:
    """Train a population until the run has all its generations, from its newest checkpoint if there is one.

    After training, the state is `Completed`. Without training, it is `Completed` too, but named `AlreadyFinished` if
    the run was complete, `AlreadyRunning` if another process trains it or is about to, `StillSuspended` if the run to
    resume is suspended in Prefect's pages, `NothingToDo` if no run is left to resume. It is `Failed`, named
    `MemoryPlan` if the run does not fit into memory or onto the disk and was not begun, `MemoryGuard` if the memory
    guard ended it, `Blocked` after three resumes that did not complete the same generation.

    Args:
        config: Settings of the run. A setting that is left empty has the value of the preset. With resume, only
            `market.data`, the path of the prices, counts (and `MACHINE_SETTINGS` without a deployment).
        run: Name of the run: letters, digits, dots, dashes and underscores. Empty: a new run, named by preset and time;
            with resume, the run that was requested last. If that is complete, cancelled or suspended, and a user (not
            the schedule) resumes: the newest unfinished run of the store that was neither cancelled nor suspended.
        resume: Continue a run, which must exist. If this is off, a run that does not exist is begun.
    """
    with stop_requests_raised():
        # Prefect also imports this file for hooks and forms, which need no training.
        from flows.server.training_flow import train_flow_run

        return train_flow_run(config, run, resume=resume)


@flow(name="cleanup", flow_run_name="cleanup", persist_result=False)
def cleanup_flow(grace_hours: Annotated[float, Field(ge=0)] = 24.0, dry_run: bool = False) -> int:
    """Remove checkpoints that the settings `checkpoint.keep_...` of their run do not keep; return the bytes freed.

    All runs of the worker's store are cleaned, except those that a process trains.

    Args:
        grace_hours: Remove files that belong to no checkpoint once they are this old (hours).
        dry_run: Remove nothing; list what would be removed, and return the bytes that would be freed.
    """
    # Imported here as in `train_flow`.
    from eigen_core.housekeeping import clean_runs

    store = store_from_environment(os.environ) or CheckpointConfig().store
    cleaned = clean_runs(store, None, grace_hours * 3_600.0, dry_run=dry_run)
    freed = sum(run.bytes_freed for run in cleaned)
    what = f"Dry run of a cleanup of {store}: nothing is removed" if dry_run else f"Cleanup of the runs in {store}"
    get_run_logger().info("%s, %d runs, %s", what, len(cleaned), size(freed))
    for run in cleaned:
        done = f"{len(run.stored.generations)} generations, {len(run.stored.blobs)} files, {size(run.bytes_freed)}"
        get_run_logger().info("%s: %s", run.run, run.skipped or done)
    return freed
