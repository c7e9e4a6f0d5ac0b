"""A password in a setting is refused before anything keeps or shows it."""

import pytest
from pydantic import ValidationError

from eigen_core.checkpoint.location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.text import has_credentials, without_credentials
from eigen_core.config import Config
from eigen_core.config.explain import settings
from eigen_core.config.loading import load_config
from eigen_core.config.stored import config_from_stored, stored_values

_SECRET = "hunter2"
_URLS = [
    f"http://user:{_SECRET}@host:5000",
    f"postgresql://user:{_SECRET}/{_SECRET}@host/database",
    f"https://{_SECRET}@host",
    f"https://host/path?access_token={_SECRET}",
]


@pytest.mark.parametrize("url", _URLS)
@pytest.mark.parametrize("key", [key for key, one in settings().items() if one.kind in ("string", "strings")])
def test_it_is_refused_in_every_text_and_not_repeated(key: str, url: str) -> None:
    with pytest.raises(InputError, match=rf"^{key} has a user or a password in it") as refused:
        load_config(None, [f"{key}={url}"])
    assert _SECRET not in str(refused.value)


def test_the_sentence_names_where_it_belongs() -> None:
    with pytest.raises(InputError, match="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or all of it in"):
        load_config(None, [f"reporting.mlflow_uri={_URLS[0]}"])
    with pytest.raises(InputError, match="set GOOGLE_APPLICATION_CREDENTIALS in the environment"):
        load_config(None, [f"checkpoint.store={_URLS[0]}"])


def test_prefect_is_told_nothing_of_it() -> None:
    # What Prefect makes of a parameter that is refused is shown in its pages.
    for values in ({"scheduler": _URLS[0]}, {"unknown": _URLS[0]}, {"market": {"unknown": [_URLS[2]]}}):
        with pytest.raises(ValidationError) as refused:
            Config.model_validate(values)
        assert _SECRET not in str(refused.value)
    with pytest.raises(ValidationError) as refused:
        Config.model_validate({"seed": _SECRET})
    assert _SECRET not in str(refused.value)


def test_a_run_that_was_stored_with_one_opens_without_it() -> None:
    stored = stored_values(Config())
    stored |= {"reporting": {"mlflow_uri": _URLS[0], "plot_every": 7}}
    config = config_from_stored(stored)
    assert (config.reporting.mlflow_uri, config.reporting.plot_every) == (None, 7)
    assert _SECRET not in str(stored_values(config))


@pytest.mark.parametrize("url", _URLS)
def test_a_store_is_not_opened_with_one(url: str) -> None:
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
    ],
)
def test_what_is_none_is_left_alone(text: str) -> None:
    assert not has_credentials(text)
    assert without_credentials(f"{text} does not answer") == f"{text} does not answer"


@pytest.mark.parametrize("url", _URLS)
def test_it_is_hidden_in_what_others_say(url: str) -> None:
    said = without_credentials(f"API request to {url} failed: {url}")
    assert _SECRET not in said
    assert "host" in said
