"""A store cannot set what belongs to this machine; a password in a setting is refused before anything shows it."""

import pytest
from hostile_settings import HOSTILE, nested
from pydantic import ValidationError

from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.text import has_credentials, without_credentials
from eigen_core.config import Config
from eigen_core.config.explain import flatten, settings
from eigen_core.config.loading import config_from_values, load_config, values_of_environment
from eigen_core.config.machine_settings import MACHINE_SETTINGS, belongs_to_run, machine_values, run_values
from eigen_core.config.stored import config_from_stored, stored_values


def test_each_setting_belongs_to_the_run_or_to_this_machine() -> None:
    wrong = [key for key in settings() if (key in MACHINE_SETTINGS) == belongs_to_run(key)]
    assert wrong == [], "decide for a new setting whether a store may give it"


def test_a_store_gives_no_setting_that_is_not_listed() -> None:
    values = {"seed": 3, "plugins": "evil", "checkpoint": {"keep_last": 2, "hook": "evil"}, "network": {"channels": 4}}
    assert run_values(values) == {"seed": 3, "checkpoint": {"keep_last": 2}, "network": {"channels": 4}}


def test_a_text_that_a_store_may_give_is_one_that_is_known_to_be_harmless() -> None:
    texts = {key for key, one in settings().items() if one.kind in ("string", "strings") and not one.bounds}
    assert texts - set(MACHINE_SETTINGS) == {
        "market.data",
        *(key for key in texts if key.startswith("market.columns.")),
        "market.symbols",
        "market.events",
        "market.instruments",
        "market.symbol_from",
        "market.date_format",
        "market.context",
        "market.levels",
        "market.own_features",
        "market.time_zone",
        "market.calendar",
        "trading.decide_every",
        "account.start",
    }


@pytest.mark.parametrize("key", MACHINE_SETTINGS)
def test_a_store_gives_no_setting_of_this_machine(key: str) -> None:
    stored = stored_values(Config(**nested(key, HOSTILE[key])))
    assert flatten(stored)[key] == HOSTILE[key]
    assert config_from_stored(stored) == Config()


def test_what_cannot_be_a_setting_of_this_machine_keeps_no_run_from_being_opened() -> None:
    stored = stored_values(Config())
    stored |= {"scheduler": {"not": "an address"}, "reporting": {"mlflow_uri": 3, "plot_every": 7}}
    assert config_from_stored(stored).reporting.plot_every == 7


def test_the_workers_of_this_machines_scheduler_take_the_place_of_stored_ones() -> None:
    config = config_from_stored(stored_values(Config(workers=4)), {"scheduler": "tcp://here:8786"})
    assert (config.scheduler, config.workers) == ("tcp://here:8786", 0)
    assert config_from_stored(stored_values(Config(workers=4))).workers == 4


def test_machine_values_hold_a_task_that_imports_a_module() -> None:
    values = {"seed": 3, "task": "gym:module:Class", **nested("checkpoint.store", "here"), "market": {"window": 9}}
    assert machine_values(values) == {"task": "gym:module:Class", "checkpoint": {"store": "here"}}
    assert machine_values({"task": "gym:module:Name-v0"}) == {"task": "gym:module:Name-v0"}
    assert machine_values({"task": "gym:Pendulum-v1"}) == machine_values({"task": "market"}) == {}


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


_SECRET = "hunter2"
_URLS = [
    f"http://user:{_SECRET}@host:5000",
    f"postgresql://user:{_SECRET}/{_SECRET}@host/database",
    f"https://{_SECRET}@host",
    f"https://host/path?access_token={_SECRET}",
]
_NAMES = (
    "jwt key code sas sig token auth pass api-key api_key apikey X-Amz-Signature client_secret csrftoken AccountKey"
)
_TEXTS = [
    *_URLS,
    f"user:{_SECRET}@host:5000",
    f"me@example.org:{_SECRET}@host",
    f"at user.name:{_SECRET}:1@host/database",
    *(
        f"{host}host/path?day=1{sign}{name}={_SECRET}"
        for name in _NAMES.split()
        for host in ("", "s3://")
        for sign in "&;#"
    ),
    *(f"host?{name}={_SECRET}" for name in _NAMES.split()),
]


@pytest.mark.parametrize("url", _URLS)
@pytest.mark.parametrize("key", [key for key, one in settings().items() if one.kind in ("string", "strings")])
def test_a_password_is_refused_in_every_text_setting_and_not_repeated(key: str, url: str) -> None:
    with pytest.raises(InputError, match=rf"^{key} has a user or a password in it") as refused:
        load_config(None, [f"{key}={url}"])
    assert _SECRET not in str(refused.value)


def test_a_refused_parameter_shows_no_password_to_prefect() -> None:
    # What Prefect makes of a parameter that is refused is shown in its pages.
    for values in ({"scheduler": _URLS[0]}, {"unknown": _URLS[0]}, {"market": {"unknown": [_URLS[2]]}}):
        with pytest.raises(ValidationError) as refused:
            Config.model_validate(values)
        assert _SECRET not in str(refused.value)
    with pytest.raises(ValidationError) as refused:
        Config.model_validate({"seed": _SECRET})
    assert _SECRET not in str(refused.value)


def test_a_run_that_was_stored_with_a_password_opens_without_it() -> None:
    stored = stored_values(Config())
    stored |= {"reporting": {"mlflow_uri": _URLS[0], "plot_every": 7}}
    config = config_from_stored(stored)
    assert (config.reporting.mlflow_uri, config.reporting.plot_every) == (None, 7)
    assert _SECRET not in str(stored_values(config))


@pytest.mark.parametrize("url", _URLS)
def test_a_store_is_not_opened_with_a_password_in_its_url(url: str) -> None:
    with pytest.raises(InputError, match="has a user or a password in its URL") as refused:
        open_store(url)
    assert _SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/a@b",
        "http://host:5000/path@x",
        "sqlite:///folder/name@host.db",
        "tcp://host:8786",
        "/home/me@x/runs",
        "me@example.org",
        "mailto:me@example.org",
        "git@example.org:group/project@main",
        "https://host/find?keyword=a&monkey=b&codes=c&token=&design=d",
        r"C:\Users\me@x",
        "D:/data/me@x",
        r"(?P<symbol>\w+)@(?P<code>\w+)",
        "gym:module:Name-v0",
    ],
)
def test_a_text_without_a_password_is_unchanged(text: str) -> None:
    assert not has_credentials(text)
    assert without_credentials(f"{text} does not answer") == f"{text} does not answer"


@pytest.mark.parametrize("url", _TEXTS)
def test_a_password_is_hidden_in_messages_of_libraries(url: str) -> None:
    assert has_credentials(url)
    said = without_credentials(f"API request to {url} failed: {url}")
    assert _SECRET not in said
    assert "host" in said
