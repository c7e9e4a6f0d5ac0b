"""A store cannot set what belongs to this machine."""

import pytest
from hostile_settings import HOSTILE, nested

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.explain import flatten, settings
from eigen_core.config.loading import config_from_values, load_config, values_of_environment
from eigen_core.config.machine import MACHINE_SETTINGS, machine_values, names_module, run_values
from eigen_core.config.stored import config_from_stored, stored_values


def test_a_text_that_a_store_may_give_is_one_that_is_known_to_be_harmless() -> None:
    assert set(settings()) > set(MACHINE_SETTINGS)
    texts = {key for key, one in settings().items() if one.kind in ("string", "strings") and not one.bounds}
    assert texts - set(MACHINE_SETTINGS) == {
        "market.data",
        *(key for key in texts if key.startswith("market.columns.")),
        "market.symbols",
        "market.symbol_from",
        "market.date_format",
        "market.context",
        "market.own_features",
        "market.time_zone",
    }


@pytest.mark.parametrize("key", MACHINE_SETTINGS)
def test_a_store_gives_no_setting_of_this_machine(key: str) -> None:
    stored = stored_values(Config(**nested(key, HOSTILE[key])))
    assert flatten(stored)[key] == HOSTILE[key]
    assert config_from_stored(stored) == Config()
    own = config_from_stored(stored, nested(key, settings()[key].default))
    assert own == Config()


def test_what_cannot_be_a_setting_of_this_machine_keeps_no_run_from_being_opened() -> None:
    stored = stored_values(Config())
    stored |= {"scheduler": {"not": "an address"}, "reporting": {"mlflow_uri": 3, "plot_every": 7}}
    assert config_from_stored(stored).reporting.plot_every == 7


def test_the_workers_of_this_machines_scheduler_take_the_place_of_stored_ones() -> None:
    config = config_from_stored(stored_values(Config(workers=4)), {"scheduler": "tcp://here:8786"})
    assert (config.scheduler, config.workers) == ("tcp://here:8786", 0)
    assert config_from_stored(stored_values(Config(workers=4))).workers == 4


def test_values_are_told_apart() -> None:
    values = {"seed": 3, "task": "gym:module:Class", **nested("checkpoint.store", "here"), "market": {"window": 9}}
    assert run_values(values) == {"seed": 3, "task": "gym:module:Class", "market": {"window": 9}}
    assert machine_values(values) == {"task": "gym:module:Class", "checkpoint": {"store": "here"}}
    assert machine_values({"task": "gym:Pendulum-v1"}) == {}


@pytest.mark.parametrize(
    ("task", "imports"),
    [("market", False), ("gym:Pendulum-v1", False), ("gym:module:Class", True), ("gym:module:Name-v0", True)],
)
def test_a_task_that_imports_a_module_is_known(task: str, imports: bool) -> None:
    assert names_module(task) is imports


def test_the_environment_gives_settings_where_nothing_else_does() -> None:
    environ = {
        "EIGEN_SCHEDULER": "tcp://here:8786",
        "EIGEN_TRACKERS": "tensorboard, mlflow",
        "EIGEN_TENSORBOARD_FOLDER": "/logs",
        "MLFLOW_EXPERIMENT_NAME": "mine",
        # MLflow itself reads it: it may hold a password.
        "MLFLOW_TRACKING_URI": "http://user:password@host",
    }
    config = load_config(None, [], environ)
    assert config.scheduler == "tcp://here:8786"
    assert config.reporting.trackers == ("tensorboard", "mlflow")
    assert (config.reporting.tensorboard_folder, config.reporting.mlflow_experiment) == ("/logs", "mine")
    assert config.reporting.mlflow_uri is None
    assert load_config(None, ["scheduler="], environ).scheduler is None
    assert config_from_values(values_of_environment({"EIGEN_LOCAL": " /scratch "})).checkpoint.local == "/scratch"


def test_a_variable_that_cannot_be_used_is_named() -> None:
    with pytest.raises(InputError, match=r"EIGEN_TRACKERS .* reporting\.trackers: .*'nobody'"):
        values_of_environment({"EIGEN_TRACKERS": "nobody"})
