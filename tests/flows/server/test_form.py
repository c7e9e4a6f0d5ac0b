"""The parameters of the training flow: as a form, and as foreign values that give no setting of the worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
from hostile_settings import HOSTILE, nested
from prefect.utilities.callables import parameter_schema

from eigen_core.common.errors import InputError
from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.machine_settings import MACHINE_SETTINGS, run_values
from flows.server.flows import cleanup_flow, train_flow
from flows.server.state_directory import StateDirectory
from flows.server.training_flow import with_own_settings


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return parameter_schema(train_flow.fn).model_dump()


def settings(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, setting in schema["definitions"]["Config"]["properties"].items():
        section = schema["definitions"].get(setting.get("$ref", "").rsplit("/", 1)[-1], setting)
        if "properties" in section:
            assert "default" not in setting
            for inner_name, inner in section["properties"].items():
                yield f"{name}.{inner_name}", inner
        else:
            yield name, setting


def test_every_setting_is_described_and_has_no_value_that_a_form_would_send(schema: dict[str, Any]) -> None:
    found = dict(settings(schema))
    assert len(found) > 80
    assert [name for name, setting in found.items() if "default" in setting] == []
    # A form sends an untouched check box as false, and shows a single choice as one that cannot be filled in.
    assert [name for name, setting in found.items() if setting.get("type") == "boolean" or "const" in setting] == []
    assert [name for name, setting in found.items() if not setting.get("description")] == []
    assert [name for name, parameter in schema["properties"].items() if not parameter.get("description")] == []
    assert schema["required"] == ["config"]
    assert schema["properties"]["config"].get("default") is None
    assert found["market.window"]["description"].endswith("Default: 64; eigen2: 504; eigen2-classic: 504.")
    assert found["memory.limit_gb"]["description"].endswith("Default: empty.")
    assert found["preset"]["enum"] == list(PRESET_NAMES)
    assert "ddpg" in found["learner.algorithm"]["enum"]


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_preset_is_accepted_whole_and_by_name(schema: dict[str, Any], preset: str) -> None:
    for config in ({"preset": preset}, run_values(Config(preset=preset).model_dump(mode="json"))):
        jsonschema.validate({"config": config, "run": None, "resume": False}, schema)


@pytest.mark.parametrize(
    "config",
    [
        {"preset": "eigen3"},
        {"generations": 0},
        {"generation": 3},
        {"learner": {"algorithm": "ddpg", "clip_range": 0.1}},
        {"learner": {"clip_range": 0.1, "tau": 0.1}},
        {"evolution": {"method": "cem", "mutation_rate": 0.1}},
        {"threads": "two"},
    ],
    ids=lambda config: "-".join(config),
)
def test_what_our_own_validation_refuses_is_refused(schema: dict[str, Any], config: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"config": config}, schema)


@pytest.fixture
def by_worker(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    """This process runs a flow that a worker was given; the worker has this folder."""
    for setting in MACHINE_SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid4()))
    return StateDirectory(user_folder / ".eigen")


@pytest.mark.usefixtures("by_worker")
@pytest.mark.parametrize("key", MACHINE_SETTINGS)
def test_a_parameter_that_gives_a_setting_of_the_worker_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=f"parameters of this flow run give {key}.*{MACHINE_SETTINGS[key].variable}"):
        with_own_settings(Config(**nested(key, HOSTILE[key])), "run")


@pytest.mark.parametrize("key", MACHINE_SETTINGS)
def test_the_server_is_told_of_no_such_parameter(schema: dict[str, Any], key: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match="Additional properties are not allowed"):
        jsonschema.validate({"config": nested(key, HOSTILE[key])}, schema)
    jsonschema.validate({"config": {"seed": 3, "reporting": {"plot_every": 3}}}, schema)


@pytest.mark.usefixtures("by_worker")
def test_a_parameter_imports_no_module_that_the_worker_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(preset="pendulum", task="gym:module:Class")
    with pytest.raises(InputError, match="gym:module:Class, which imports a module"):
        with_own_settings(config, "run")
    monkeypatch.setenv("EIGEN_TASK", "gym:module:Other")
    with pytest.raises(InputError, match="EIGEN_TASK=gym:module:Class"):
        with_own_settings(config, None)
    monkeypatch.setenv("EIGEN_TASK", "gym:module:Class")
    assert with_own_settings(config, None) == config
    assert with_own_settings(Config(preset="pendulum", task="gym:Pendulum-v1"), None).task == "gym:Pendulum-v1"


def test_the_worker_has_its_own_settings(by_worker: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGEN_SCHEDULER", "tcp://here:8786")
    monkeypatch.setenv("EIGEN_STORE", "kept")
    config = with_own_settings(Config(workers=4, seed=3), "run")
    assert (config.scheduler, config.workers, config.checkpoint.store, config.seed) == ("tcp://here:8786", 0, "kept", 3)
    # What `eigen launch` was given here is this machine's own as well, and nearer than the environment.
    launched = {"scheduler": None, "task": "gym:module:Class", "checkpoint": {"store": "mine"}}
    with by_worker.new_launch_settings("run", launched):
        config = with_own_settings(Config(preset="pendulum", workers=4, task="gym:module:Class"), "run")
    assert (config.scheduler, config.workers, config.checkpoint.store) == (None, 4, "mine")
    with pytest.raises(InputError, match="imports a module"):
        with_own_settings(Config(preset="pendulum", task="gym:module:Class"), "other")


def test_a_working_folder_names_no_settings_of_this_machine(by_worker: StateDirectory, user_folder: Path) -> None:
    """It may come from somebody else: what `eigen launch` was given is kept elsewhere, by folder and run."""
    theirs = by_worker.path / "launched" / "run.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"scheduler": "tcp://evil:1", "task": "gym:evil:Class"}')
    assert with_own_settings(Config(), "run").scheduler is None
    with pytest.raises(InputError, match="imports a module"):
        with_own_settings(Config(preset="pendulum", task="gym:evil:Class"), "run")
    for run in ("run", "../run", "a\ud800b"):
        with by_worker.new_launch_settings(run, {"scheduler": "tcp://a:1"}):
            assert with_own_settings(Config(), run).scheduler == "tcp://a:1"
    assert list(user_folder.iterdir()) == [by_worker.path]
    assert StateDirectory(user_folder / "other").launch_settings("run") == {}
    by_worker._launch_file("run").write_text("{")
    with pytest.raises(InputError, match="remove it, and launch run 'run' again"):
        by_worker.launch_settings("run")


def test_no_parameter_names_the_store_that_is_cleaned() -> None:
    schema = parameter_schema(cleanup_flow.fn).model_dump()
    assert set(schema["properties"]) == {"grace_hours", "dry_run"}
