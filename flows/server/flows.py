"""The flows that Prefect calls: train, cleanup; and the form in which its pages offer a configuration."""

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from eigen_core.checkpoint.store import store_from_environment
from eigen_core.common.process import stop_requests_raised
from eigen_core.common.text import size
from eigen_core.config import PRESET_NAMES, VARIANTS, Config, preset_values
from eigen_core.config.explain import flatten, settings
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.model import CheckpointConfig
from flows.server.flow_runs import initial_name, stop_resuming
from flows.server.prefect_internals import keep_training_without_slot

if TYPE_CHECKING:
    from eigen_core.housekeeping import CleanedRun

if runtime.flow_run.id is not None:
    # In the process of a flow run, import what a training needs now: Prefect's threads parse signatures when the flow
    # begins, pydantic parses the sources of models as they are imported, and before Python 3.11.8 and 3.12.2 two
    # threads that parse at once may raise a SystemError (github.com/python/cpython/issues/106905).
    import flows.server.training_flow  # noqa: F401


class _Form:
    """The schema of Prefect's form for a configuration: without defaults, and without settings of a machine.

    A form sends every value that it shows: shown defaults would override another preset, so descriptions name them. A
    worker takes a machine's settings from environment variables, and the server refuses parameters that the form lacks.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        properties = handler.resolve_ref_schema(reference)["properties"]
        for section in VARIANTS:
            properties[section] = _of_all_variants(section, properties[section], handler)
        for name, setting in _given_by_parameters(properties, ""):
            resolved = handler.resolve_ref_schema(setting)
            if "properties" in resolved:
                setting.pop("default", None)
                for inner_name, inner in _given_by_parameters(resolved["properties"], f"{name}."):
                    _without_value(inner, f"{name}.{inner_name}")
            else:
                _without_value(setting, name)
        properties["preset"]["enum"] = list(PRESET_NAMES)
        return reference


def _of_all_variants(section: str, schema: Mapping[str, Any], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return the schemas of all algorithms, or methods, as one, with a rule: the chosen one has all given settings.

    Prefect's pages choose among several schemas by the names of the values that were entered, and algorithms share
    most of them. The rule is in `then`, which the server obeys and the pages ignore.
    """
    key, common, models = VARIANTS[section]
    properties: dict[str, Any] = {}
    for one in schema["oneOf"]:
        for name, setting in handler.resolve_ref_schema(one)["properties"].items():
            having = settings()[f"{section}.{name}"].variants
            described = f"{setting['description']} With {', '.join(having)}." if having else setting.get("description")
            properties.setdefault(name, {**setting, "description": described})
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


def _given_by_parameters(properties: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Remove the settings of a machine from `properties`, and return the others."""
    for name in [name for name in properties if f"{prefix}{name}" in MACHINE_SETTINGS]:
        del properties[name]
    return list(properties.items())


FormConfig = Annotated[Config, _Form()]
"""`Config`, as a parameter that is filled in as a form."""


def _without_value(setting: dict[str, Any], key: str) -> None:
    if "default" in setting:
        default = setting.pop("default")
        values_shown = [f"Default: {_json(default)}"]
        if key != "preset":
            values = [(name, preset.get(key, default)) for name, preset in _presets().items()]
            values_shown += [f"{name}: {_json(value)}" for name, value in values if value != default]
        setting["description"] = f"{setting['description']} {'; '.join(values_shown)}."
    if "const" in setting:
        # A field of a single choice: a form would show it as one that cannot be filled in.
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
def train_flow(config: FormConfig, run: str | None = None, resume: bool = False) -> State[None] | None:
    """Train a population until the run has all its generations, from its newest checkpoint if there is one.

    Ends as `Completed`, named `AlreadyFinished` if the run was complete, `AlreadyRunning` if another process trains it
    or is about to, `StillSuspended` if the run to resume is suspended in Prefect's pages, and `NothingToDo` if the
    requested runs are complete or were stopped; as `Failed`, with the exception as its data, named `MemoryPlan` if the
    run does not fit into memory or onto the disk and was not begun, `MemoryGuard` if the guard ended it, and `Blocked`
    after too many attempts at the same generation.

    Args:
        config: Everything that determines the run. Empty settings are those of the preset. With resume, only the path
            of the prices counts, and a machine's settings: a run continues as it was configured.
        run: Name of the run: letters, digits, dots, dashes and underscores. Empty: a new run, named by preset and time;
            with resume, the run that was requested last; if that is complete or was stopped, and a user (not the
            schedule) resumes, the newest unfinished run of the store that was not stopped.
        resume: Continue a run, which must exist. Without resume, a missing run is begun.
    """
    with stop_requests_raised():
        # Prefect also imports this file for hooks and forms, which need no training.
        from flows.server.training_flow import train_flow_run

        return train_flow_run(config, run, resume=resume)


@flow(name="cleanup", flow_run_name="cleanup", persist_result=False)
def cleanup_flow(grace_hours: Annotated[float, Field(ge=0)] = 24.0, dry_run: bool = False) -> int:
    """Remove what retention does not keep of each run in the worker's store; return the bytes freed. Skip runs in use.

    Args:
        grace_hours: Age (hours) from which files are removed that belong to no generation.
        dry_run: Only list what would be removed.
    """
    # Imported here as in `train_flow`.
    from eigen_core.housekeeping import clean_runs
    from flows.server.artifacts import publish_cleaning

    store = store_from_environment(os.environ) or CheckpointConfig().store
    cleaned = clean_runs(store, None, grace_hours * 3_600.0, dry_run=dry_run)
    freed = sum(run.bytes_freed for run in cleaned)
    get_run_logger().info("%d runs in %s, %s freed", len(cleaned), store, size(freed))
    publish_cleaning(store, [_row(run) for run in cleaned])
    return freed


def _row(run: "CleanedRun") -> dict[str, str | int | float | None]:
    return {
        "run": run.run,
        "generations removed": len(run.stored.generations),
        "files removed": len(run.stored.blobs),
        "freed (MB)": round(run.bytes_freed / 1e6, 1),
        "skipped": run.skipped or "",
    }
