"""From preset and settings to a configuration, what each setting accepts, and sentences for what cannot be one."""

import math
import pickle
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from benchmarks.fuzz import configuration
from benchmarks.fuzz.cases import findings, fuzz
from eigen_core.common.errors import InputError
from eigen_core.config import (
    PRESET_NAMES,
    VARIANTS,
    CemConfig,
    Config,
    LearnerConfig,
    OffPolicyConfig,
    preset_values,
)
from eigen_core.config.explain import Setting, explain, flatten, settings
from eigen_core.config.learning import Variants
from eigen_core.config.loading import config_from_values, differing_keys, load_config


def test_a_preset_alone_gives_its_values_over_the_defaults() -> None:
    for name in PRESET_NAMES:
        values = flatten(load_config(name).model_dump(mode="json"))
        known = settings(preset_values(name).get("learner", {}).get("algorithm", "ddpg"), "genetic")
        expected = {key: setting.default for key, setting in known.items()} | flatten(preset_values(name))
        assert values == expected


def test_a_preset_may_override_another() -> None:
    values, base = flatten(preset_values("ppo")), flatten(preset_values("ddpg"))
    assert "extends" not in values
    assert {key for key in base if key in settings("ppo")} <= values.keys() <= settings("ppo", "genetic").keys()
    assert values["trading.holding_bars"] == base["trading.holding_bars"]
    assert values["learner.algorithm"] == "ppo"


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("learner.batch_size=128", "learner.batch_size", 128),
        ("learner.actor_learning_rate=1e-4", "learner.actor_learning_rate", 1e-4),
        ("evolution.enabled=false", "evolution.enabled", False),
        ("trading.max_coefficient=null", "trading.max_coefficient", None),
        ("market.data=", "market.data", None),
        ("market.data=prices=1.csv", "market.data", "prices=1.csv"),
        ("checkpoint.store=no", "checkpoint.store", "no"),
        ("network.scales=[1, 20]", "network.scales", (1, 20)),
        ("network.scales=5", "network.scales", (5,)),
        ("market.context=ON,NO,123", "market.context", ("ON", "NO", "123")),
        ("market.context=", "market.context", ()),
        ("market.context=['^VIX', \"BRK B\", 007]", "market.context", ("^VIX", "BRK B", "007")),
        ("market.data=0x10", "market.data", "0x10"),
        (" seed = 7 ", "seed", 7),
    ],
)
def test_a_setting_reads_as_what_its_key_holds(assignment: str, key: str, value: object) -> None:
    assert flatten(load_config("ddpg", [assignment]).model_dump())[key] == value


def test_an_algorithm_takes_from_a_preset_the_settings_that_it_has() -> None:
    """Every preset's learner can be replaced by one setting; what the user gave is never dropped."""
    models = VARIANTS["learner"].models
    for preset, algorithm in product(PRESET_NAMES, models):
        learner = load_config(preset, [f"learner.algorithm={algorithm}"]).learner
        given = preset_values(preset).get("learner", {})
        shared = {name: value for name, value in given.items() if name in models[algorithm].model_fields}
        assert type(learner) is models[algorithm]
        assert learner == models[algorithm](**{**shared, "algorithm": algorithm})
    assert load_config("pendulum", ["evolution.method=cem"]).evolution == CemConfig(elite_share=0.75)
    assert load_config("quickstart", ["learner.clip_range=0.1", "learner.algorithm=ppo"]) == load_config(
        "quickstart", ["learner.algorithm=ppo", "learner.clip_range=0.1"]
    )


@pytest.mark.parametrize(
    ("given", "having"),
    [
        (["learner.clip_range=0.1"], "ppo, and .* is ddpg, which has"),
        (["learner.clip_range=0.1", "learner.algorithm=ddpg"], "ppo, and .* is ddpg, which has"),
        (["evolution.mutation_rate=0.2", "evolution.method=pbt"], "genetic, erl, and .* is pbt, which has"),
        (["evolution.enabled=false", "evolution.method=erl"], "genetic, and .* is erl, which has"),
        (["evolution.perturbation=0.1"], "pbt, and .* is genetic, which has"),
    ],
)
def test_a_setting_of_another_variant_is_refused_with_those_of_this_one(given: list[str], having: str) -> None:
    key = given[0].partition("=")[0]
    with pytest.raises(InputError, match=rf"^{re.escape(key)} is a setting of {having}") as refused:
        load_config("ddpg", given)
    words = set(re.findall(r"\w+", str(refused.value)))
    variants = VARIANTS[key.partition(".")[0]]
    own = next(model for name, model in variants.models.items() if f"is {name}, which has" in str(refused.value))
    others = {name for model in variants.models.values() for name in model.model_fields} - own.model_fields.keys()
    assert own.model_fields.keys() <= words
    assert words & others == {key.rpartition(".")[2]}


BAD_ASSIGNMENTS = {
    "learner.batchsize=3": "did you mean learner.batch_size?",
    "zzzqq=1": "lists all settings",
    "learner=3": "is a section of settings",
    "learner.batch_size": "write it as key=value",
    "": "write it as key=value",
    "learner.batch_size=x": "give a whole number from 1 to 65,536",
    "seed=99999999999999999999": "below 9,223,372,036,854,775,808",
    "trading.cost_bps=Infinity": "'Infinity' cannot be used",
    "trading.loss_multiplier=1e400": "'inf' cannot be used",
    # YAML 1.1 reads other numbers.
    "population.size=010": "'010' cannot be used",
    "learner.actor_learning_rate=1:30": "'1:30' cannot be used",
    "population.size=\u0661\u0660": "'\u0661\u0660' cannot be used",
    "network.scales=[1, [2]]": "'[2]' cannot be used",
    "market.context=A,,B": "'A,,B' cannot be used",
    f"generations={10**30}": "give a whole number from 1 to 1,000,000",
    f"seed={'9' * 4_000}": "'a number of 13,288 bits' cannot be used",
    f"{'x' * 5_000}=1": "lists all settings",
    f"network.scales={'[' * 100_000}": "give a list of whole numbers",
    f"market.data={'x' * 5_000}": "give text, or null",
    "market.data=a\nb": "'a\\nb' cannot be used",
    "market.data=\udcff": "'\\udcff' cannot be used",
    f"preset={'x' * 5_000}": "give one of cartpole",
    "learner.algorithm=dqn": "'dqn' cannot be used; give one of ddpg, td3, sac, ppo, counterfactual, direct",
    "market.first_date=2014-02-30": "give a date as YYYY-MM-DD, or null",
    "network.scales=[]": "give a list of whole numbers",
    "network.scales=[1, 1000]": "network.scales has 1000 days but market.window is 64",
    "network.linear_scales=[1, 1000]": "network.linear_scales has 1000 days but market.window is 64",
    "learner.linear_scales=[1]": "did you mean network.linear_scales?",
    "replay.capacity=10": "replay.minimum 2,000 is above replay.capacity 10",
    "trading.min_target=0.9": "swap them",
    "market.validation=10": "shorter than an episode",
    "preset=huge": "there is no preset 'huge'",
    **{
        f"account.start={text}": "write a symbol and a number of shares, as in AAPL 10"
        for text in ("AAPL", "10", "AAPL ten", "AAPL nan", "AAPL 1_000", "AAPL 0", "AAPL 1e400", "AAPL 1,000")
    },
    "account.start=AAPL 1, AAPL 2": "account.start has 'AAPL' twice: give each symbol once",
    "account.start=A B -2.5": "'A B' is sold short, which only task portfolio with portfolio.short allows",
}


@pytest.mark.parametrize(("assignment", "part"), BAD_ASSIGNMENTS.items())
def test_a_bad_setting_is_refused_in_at_most_two_sentences(assignment: str, part: str) -> None:
    with pytest.raises(InputError) as refused:
        load_config("ddpg" if "preset" not in assignment else None, [assignment])
    message = str(refused.value)
    assert part in message
    assert message[-1] in ".?"
    assert message.isprintable()
    assert len(message) < 300
    assert len(re.findall(r"[.?](?:\s|$)", message)) <= 2


def test_what_an_account_begins_with_may_be_sold_short_where_its_portfolio_may() -> None:
    given = ["task=portfolio", "account.start=BRK B -2.5, AAPL 1e3"]
    assert load_config(None, [*given, "portfolio.short=0.5"]).account.holdings == {"BRK B": -2.5, "AAPL": 1_000.0}
    with pytest.raises(InputError, match="sold short"):
        load_config(None, given)


@pytest.mark.parametrize("setting", ["network.linear_scales=[1]", "learner.known_return_weight=1"])
def test_what_needs_assets_is_refused_without_any(setting: str) -> None:
    key = re.escape(setting.partition("=")[0])
    with pytest.raises(InputError, match=rf"{key} .*of assets, and task gym:Pendulum-v1 has none: set it to"):
        load_config("pendulum", [setting])


def test_the_replaced_system_buys_one_asset_a_day_by_its_coefficient() -> None:
    several = "trading.purchases_per_bar=3"
    for setting, words in (("trading.rank=separate", "use rank coefficient"), (several, "use 1, or bookkeeping exact")):
        with pytest.raises(InputError, match=words):
            load_config("eigen2-classic", [setting])
    assert load_config("eigen2-classic", [several, "trading.bookkeeping=exact"]).trading.purchases_per_bar == 3


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="seed is given twice"):
        load_config(None, ["seed=1", "seed=1"])
    with pytest.raises(InputError, match="preset is given twice"):
        load_config("quickstart", ["preset=eigen2"])
    assert load_config("eigen2", ["preset=eigen2"]).preset == "eigen2"


def test_several_errors_name_the_first_in_full_and_the_others_by_key() -> None:
    with pytest.raises(InputError) as refused:
        config_from_values({"preset": "ddpg", "learner": {"gamma": 2, "steps": 3}, "foo": 1})
    message = str(refused.value)
    assert message.startswith("learner.gamma: '2' cannot be used; give a number of at least 0 and below 1.")
    assert message.endswith("Also wrong: foo, learner.steps.")


def nested(depth: int) -> list[Any]:
    values: list[Any] = []
    for _ in range(depth):
        values = [values]
    return values


@pytest.mark.parametrize(
    "values",
    [
        {"learner": 5},
        {"learner": {3: 4}},
        {"learner": {"algorithm": ["ppo"]}},
        {"learner": {"algorithm": "x" * 5_000}},
        {"population": {"size": 10**5_000}},
        {"learner": {"gamma": 10**400}},
        {"market": {"context": "SPY"}},
        {"network": {"scales": {1: 2}}},
        {"network": {"scales": nested(100_000)}},
        {"network": {"scales": ["x"] * 1_000_000}},
        {"x" * 5_000: nested(100_000)},
    ],
)
def test_values_of_the_wrong_shape_are_refused(values: dict[Any, Any]) -> None:
    with pytest.raises(InputError) as refused:
        config_from_values(values)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


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


def test_differing_keys_are_those_that_differ() -> None:
    config = load_config("ddpg")
    other = load_config("ddpg", ["seed=2", "learner.gamma=0.5", "network.scales=[1]"])
    assert differing_keys(config, other) == ("seed", "network.scales", "learner.gamma")


def test_no_drawn_setting_is_misread(tmp_path: Path) -> None:
    outcomes = fuzz(configuration.one_case, "configuration", tmp_path, range(60), seed=7)
    assert findings(outcomes, "configuration", 7).faults == []


def test_every_setting_of_the_model_has_one_row_and_a_meaning() -> None:
    values = flatten(Config().model_dump(mode="json"))
    rows = explain(Config())
    assert [row.setting.key for row in rows] == list(values)
    for row in rows:
        assert row.value == values[row.setting.key]
        assert row.setting.meaning.endswith(".")
        assert "\n" not in row.setting.meaning
        assert row.setting.accepts


def test_a_configuration_is_explained_by_the_settings_of_its_algorithm() -> None:
    config = load_config("quickstart", ["learner.algorithm=ppo", "learner.epochs=3"])
    rows = {row.setting.key: row for row in explain(config)}
    assert rows.keys() == flatten(config.model_dump()).keys()
    assert [rows[f"learner.{name}"].source for name in ("algorithm", "epochs", "reward_clip", "clip_range")] == [
        *("given", "given", "preset", "default")
    ]
    assert settings()["learner.epochs"].variants == ("ppo",)
    assert settings()["learner.weight_decay"].variants == ()
    assert settings()["evolution.mutation_rate"].variants == ("genetic", "erl")
    assert "evolution.mutation_rate" not in settings("cem")
    assert [settings(name)["learner.policy_delay"].default for name in ("ddpg", "td3")] == [1, 2]
    empty = "Number of agents that learn by gradients; empty:"
    assert settings("erl")["evolution.learning_agents"].meaning == f"{empty} one."
    both = f"With cem: {empty} half of all but one. With erl: {empty} one."
    assert settings()["evolution.learning_agents"].meaning == both


def test_settings_of_a_learner_without_a_class_of_its_own_can_be_pickled() -> None:
    added = (
        Variants.of("algorithm", LearnerConfig, ["plain"], OffPolicyConfig)
        .models["plain"]
        .model_validate({"gamma": 0.5})
    )
    assert pickle.loads(pickle.dumps(added)) == added


def _refused(setting: Setting, value: object) -> bool:
    section = setting.key.partition(".")[0]
    variant = [f"{section}.{VARIANTS[section].key}={setting.variants[0]}"] if setting.variants else []
    try:
        load_config(None, [*variant, f"{setting.key}={value}"])
    except InputError as error:
        # Otherwise it is at odds with another setting.
        return str(error).startswith(f"{setting.key}: ")
    return False


NUMBERS = [setting for setting in settings().values() if setting.kind in ("integer", "number", "integers")]


@pytest.mark.parametrize("setting", NUMBERS)
def test_every_number_is_bounded_as_its_bounds_say(setting: Setting) -> None:
    words = r"(from|of at least|above) (-?[\d,.]+) (to|and of at most|and below) ([\d,.]+)"
    found = re.fullmatch(words, setting.bounds)
    assert found is not None
    low, high = (float(found[place].replace(",", "")) for place in (2, 4))
    low_is_inside, high_is_inside = found[1] != "above", found[3] != "and below"
    if setting.kind == "number":
        outside: list[float] = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
        edges: list[float] = [low, high]
    else:
        outside, edges = [int(low) - 1, int(high) + 1], [int(low), int(high)]
    for value, refused in zip([*outside, *edges], [True, True, not low_is_inside, not high_is_inside], strict=True):
        assert _refused(setting, value) == refused
