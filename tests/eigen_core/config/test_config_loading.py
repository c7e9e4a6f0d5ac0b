"""From preset and settings to a configuration, and sentences for what cannot be one."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.config import PRESET_NAMES, Config, preset_values
from eigen_core.config.explain import flatten, settings
from eigen_core.config.loading import config_from_values, differing_keys, load_config, parse_assignments
from eigen_core.errors import InputError


def test_a_preset_alone_gives_its_values_over_the_defaults() -> None:
    for name in PRESET_NAMES:
        values = flatten(load_config(name).model_dump(mode="json"))
        expected = {key: setting.default for key, setting in settings().items()} | flatten(preset_values(name))
        assert values == expected


def test_without_anything_the_configuration_is_the_models_default() -> None:
    assert load_config() == Config()


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("learner.batch_size=128", "learner.batch_size", 128),
        ("replay.capacity=60_000", "replay.capacity", 60_000),
        ("learner.actor_learning_rate=1e-4", "learner.actor_learning_rate", 1e-4),
        ("learner.gamma=0.5", "learner.gamma", 0.5),
        ("evolution.enabled=no", "evolution.enabled", False),
        ("learner.twin_critics=true", "learner.twin_critics", True),
        ("trading.max_coefficient=null", "trading.max_coefficient", None),
        ("market.data=", "market.data", None),
        ("market.data=prices=1.csv", "market.data", "prices=1.csv"),
        ("market.data=2024", "market.data", "2024"),
        ("checkpoint.store=no", "checkpoint.store", "no"),
        ("network.scales=[1, 20]", "network.scales", (1, 20)),
        ("network.scales=1,20", "network.scales", (1, 20)),
        ("network.scales=5", "network.scales", (5,)),
        ("market.context=ON,NO,123", "market.context", ("ON", "NO", "123")),
        ("market.context=[]", "market.context", ()),
        (" seed = 7 ", "seed", 7),
    ],
)
def test_a_setting_reads_as_what_its_key_holds(assignment: str, key: str, value: object) -> None:
    assert flatten(load_config(None, [assignment]).model_dump())[key] == value


def test_settings_win_over_the_preset_and_leave_the_rest_of_their_section() -> None:
    config = load_config("eigen2-classic", ["learner.batch_size=7"])
    assert config.learner.batch_size == 7
    assert config.learner.accumulation_steps == 6


BAD_ASSIGNMENTS = {
    "learner.batchsize=3": "did you mean learner.batch_size?",
    "batch_size=3": "did you mean learner.batch_size?",
    "learner.batch_size.x=1": "did you mean learner.batch_size?",
    "zzzqq=1": "lists all settings",
    "learner=3": "is a section of settings",
    "learner={gamma: 0.5}": "is a section of settings",
    "learner.batch_size": "write it as key=value",
    "=3": "write it as key=value",
    "": "write it as key=value",
    "learner.batch_size=x": "give a whole number from 1 to 65,536",
    "learner.batch_size=1.5": "give a whole number from 1 to 65,536",
    "learner.batch_size=": "give a whole number from 1 to 65,536",
    "learner.batch_size=yes": "'yes' cannot be used",
    "learner.batch_size=[1]": "give a whole number",
    "generations=0": "give a whole number of at least 1",
    "seed=-1": "give a whole number of at least 0",
    "seed=99999999999999999999": "below 9,223,372,036,854,775,808",
    "trading.cost_bps=-1": "give a number of at least 0",
    "trading.cost_bps=.nan": "'nan' cannot be used",
    "trading.cost_bps=nan": "'nan' cannot be used",
    "trading.loss_multiplier=.inf": "'inf' cannot be used",
    "evolution.elite_share=.nan": "above 0 and of at most 1",
    "evolution.elite_share=1.5": "above 0 and of at most 1",
    "learner.gamma=1": "below 1",
    "learner.twin_critics=perhaps": "give true or false",
    "trading.fill=yesterday": "give one of next_open, next_close, same_close",
    "device=tpu": "give one of auto, cpu, cuda",
    "network.scales=[]": "give a list of whole numbers",
    "network.scales=[0]": "give a list of whole numbers",
    "network.scales=[1": "'[1' cannot be used",
    "network.scales=[1, 1000]": "network.scales has 1000 days but market.window is 64",
    "replay.capacity=10": "replay.capacity 10 is below replay.minimum 2,000",
    "trading.min_target=0.9": "swap them",
    "trading.max_coefficient=0.5": "no agent could ever buy",
    "evaluation.lowest=9": "not that many episodes",
    "market.validation_days=10": "shorter than an episode",
    "preset=huge": "there is no preset 'huge'",
    "learner.batch_size={a: 1": "cannot be used",
}


@pytest.mark.parametrize(("assignment", "part"), BAD_ASSIGNMENTS.items())
def test_a_bad_setting_is_refused_in_at_most_two_sentences(assignment: str, part: str) -> None:
    with pytest.raises(InputError) as refused:
        load_config("quickstart" if "preset" not in assignment else None, [assignment])
    message = str(refused.value)
    assert part in message
    assert message[-1] in ".?"
    assert "\n" not in message
    assert len(re.findall(r"[.?](?:\s|$)", message)) <= 2


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="seed is given twice"):
        load_config(None, ["seed=1", "seed=1"])
    with pytest.raises(InputError, match="preset is given twice"):
        load_config("quickstart", ["preset=eigen2"])
    assert load_config("eigen2", ["preset=eigen2"]).preset == "eigen2"


def test_several_errors_name_the_first_in_full_and_the_others_by_key() -> None:
    with pytest.raises(InputError) as refused:
        config_from_values({"learner": {"gamma": 2, "steps": 3}, "foo": 1})
    message = str(refused.value)
    assert message.startswith("learner.gamma: '2' cannot be used; give a number of at least 0 and below 1.")
    assert message.endswith("Also wrong: foo, learner.steps.")


@pytest.mark.parametrize("values", [{"learner": 5}, {"learner": None}, {"preset": ["a"]}, {"preset": None}, {3: 4}])
def test_values_of_the_wrong_shape_are_refused(values: dict[Any, Any]) -> None:
    with pytest.raises(InputError):
        config_from_values(values)


def test_unreadable_text_is_shortened_in_the_message() -> None:
    with pytest.raises(InputError) as refused:
        load_config(None, ["learner.gamma=" + "x" * 10_000])
    assert len(str(refused.value)) < 200


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_makes_anything_but_a_configuration_or_an_input_error(key: str, value: str) -> None:
    for assignment in (
        f"{key}={value}",
        f"learner.batch_size={value}",
        f"network.scales={value}",
        f"market.data={value}",
    ):
        try:
            config = load_config(None, [assignment])
        except InputError:
            continue
        assert isinstance(config, Config)


def test_parsed_assignments_nest_by_their_dots() -> None:
    assert parse_assignments(["learner.gamma=0.5", "seed=3", "learner.tau=1"]) == {
        "learner": {"gamma": 0.5, "tau": 1},
        "seed": 3,
    }


def test_a_configuration_survives_json_and_differs_in_nothing() -> None:
    config = load_config("eigen2-classic", ["market.context=SPY", "seed=9", f"checkpoint.store={'x' * 80}"])
    again = config_from_values(json.loads(json.dumps(config.model_dump(mode="json"))))
    assert again == config
    assert differing_keys(config, again) == ()


def test_differing_keys_are_those_that_differ() -> None:
    config = load_config()
    other = load_config(None, ["seed=2", "learner.gamma=0.5", "network.scales=[1]"])
    assert differing_keys(config, other) == ("seed", "network.scales", "learner.gamma")
