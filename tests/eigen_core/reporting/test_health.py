"""Whether a run still improves and what is wrong with it, in ill and healthy histories, and after a real training."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from record_cases import record
from science_cases import learner_with, random_panel, small_config
from scipy.stats import linregress, ttest_ind
from training_cases import advance

from eigen_core.common.records import Excess, GenerationRecord
from eigen_core.common.text import number, signed
from eigen_core.config.loading import load_config
from eigen_core.generation import start_training
from eigen_core.reporting.health import learning_sentences, trend
from eigen_core.trading.synthetic import with_planted_edge

AGENTS = 6


class Moment(NamedTuple):
    """A record of a healthy history, the elapsed share of the run, and a number from 0.8 to 1.25 at random."""

    one: GenerationRecord
    elapsed: float
    any: float

    def with_losses(self, **losses: float) -> dict[str, Any]:
        return {"learning": {**(self.one.learning or {}), **losses}}

    def times_fitness(self, factor: float) -> tuple[float, ...]:
        return tuple(factor * self.any * value for value in self.one.fitness)

    def scaled(self, factor: float) -> dict[str, Any]:
        fitness, validations = (
            [factor * value for value in values] for values in (self.one.fitness, self.one.validations)
        )
        return {"fitness": tuple(fitness), "validations": tuple(validations), "mean_fitness": float(np.mean(fitness))}

    def stuck(self, **more: Any) -> dict[str, Any]:
        noise = 0.1 if self.elapsed < 0.3 else 0.01
        return {
            "champion_score": 12.0,
            "mean_fitness": 5.0 + (-1.0) ** self.one.generation,
            "noise_scale": noise,
            **more,
        }


Change = Callable[[Moment], dict[str, Any]]
"""What differs in a record."""


def history_of(seed: int, change: Change | None = None) -> list[GenerationRecord]:
    """A healthy history whose fitness saturates, of 12 to 48 generations and rewards up to some 40 to 400; changed."""
    rng = np.random.default_rng(seed)
    generations, gain = 12 + 4 * seed, 40.0 * 10.0 ** rng.random()
    history: list[GenerationRecord] = []
    for generation in range(1, generations + 1):
        elapsed = generation / generations
        reached = gain * (1.0 - np.exp(-4.0 * elapsed))
        fitness = reached + rng.normal(0.0, 0.1 * gain, AGENTS)
        validations = 0.6 * reached + rng.normal(0.0, 0.2 * gain, AGENTS)
        score = max(float(fitness.max()), history[-1].champion_score if history else -np.inf)
        critic_loss = 0.05 * 20.0**elapsed * rng.uniform(0.5, 2.0)
        one = record(generation).model_copy(
            update={
                "fitness": tuple(fitness.tolist()),
                "mean_fitness": float(fitness.mean()),
                "validations": tuple(validations.tolist()),
                "champion_score": score,
                "champion_excess": Excess(mean=0.05, standard_error=0.001 * gain, trades=100),
                "learning": {"gradient_steps": 32, "critic_loss": critic_loss, "actor_loss": 1e-4 * 1e4**elapsed},
                "trading": {"trades": rng.uniform(20.0, 80.0), "idle_days": rng.uniform(2.0, 30.0)},
                "noise_scale": 0.1 * 0.99**generation,
                "ancestors": tuple(int(agent) for agent in np.arange(AGENTS) // (1 + 9 * elapsed)),
                "policy_distance": rng.uniform(0.05, 0.4),
            }
        )
        changed = {} if change is None else change(Moment(one, elapsed, rng.uniform(0.8, 1.25)))
        history.append(one.model_copy(update=changed))
    return history


ALONE = {"ancestors": (2,) * AGENTS}
RULES: dict[str, tuple[Change, list[Change]]] = {
    "Learning diverges: the critic loss": (
        lambda at: at.with_losses(critic_loss=0.03 * 1e4 ** min(1.0, 2.0 * at.elapsed) * at.any),
        [
            lambda at: at.with_losses(critic_loss=300.0 if 0.4 < at.elapsed < 0.6 else 0.03),
            lambda at: at.with_losses(critic_loss=300.0 if 0.8 < at.elapsed < 0.9 else 0.03),
            lambda at: at.scaled(40.0**at.elapsed) | at.with_losses(critic_loss=1600.0**at.elapsed * at.any),
            lambda at: at.with_losses(critic_loss=float(at.elapsed > 0.5), actor_loss=1e5**at.elapsed),
        ],
    ),
    "The agents mostly fit the training episodes": (
        lambda at: {
            "validations": at.times_fitness(0.0),
            "champion_excess": Excess(mean=0.0, standard_error=1e-5, trades=100),
        },
        [
            lambda at: {"validations": at.times_fitness(0.7)},
            # The luck of the validation days can hide a gain as large as that of fitness.
            lambda at: {
                "validations": at.times_fitness(-0.1),
                "champion_excess": Excess(mean=0.3, standard_error=1.0 + max(at.one.fitness) / 10.0, trades=100),
            },
            lambda at: {
                "validations": at.times_fitness(-0.1),
                "champion_excess": Excess(mean=0.3, standard_error=0.1, trades=100),
            },
            lambda at: at.scaled(-1.0) | {"validations": at.one.fitness},
            lambda at: at.stuck(noise_scale=0.1, validations=(-100.0 * at.elapsed,)),
        ],
    ),
    "All agents descend from one of the first 6 and act alike": (
        lambda at: at.stuck() | ALONE | {"policy_distance": 0.005 * at.any, "noise_scale": 0.1},
        [
            lambda at: (
                at.stuck(mean_fitness=100.0 * at.elapsed, noise_scale=0.1, validations=(100.0 * at.elapsed,))
                | ALONE
                | {"policy_distance": 0.005 * at.any}
            ),
            lambda at: at.stuck(noise_scale=0.1) | ALONE | {"policy_distance": 0.05 * at.any},
            lambda at: at.stuck(noise_scale=0.1, ancestors=(0, 0, 0, 1, 1, 1), policy_distance=0.005 * at.any),
            lambda at: at.stuck(noise_scale=0.1, evolution={"variance": 0.1}, policy_distance=0.005 * at.any) | ALONE,
        ],
    ),
    "The agents hardly trade": (
        lambda at: {"trading": {"trades": 3.0 * at.any, "idle_days": 100.0}},
        [
            lambda at: {"trading": {"trades": 11.0 * at.any, "idle_days": 120.0}},
            lambda at: {"trading": {"trades": 50.0 * (at.elapsed > 0.6), "idle_days": 130.0}},
            lambda at: {"trading": {"trades": 20.0 * (at.one.generation % 2), "idle_days": 110.0}},
            lambda _: {"trading": {"length": 200.0}},
        ],
    ),
    "Exploration noise has been at its floor, 1.0 % of the range": (
        lambda at: at.stuck(),
        [
            lambda at: at.stuck(mean_fitness=100.0 * at.elapsed + at.any, validations=(100.0 * at.elapsed,)),
            lambda at: at.stuck(champion_score=12.0 + at.elapsed),
            lambda at: at.stuck(noise_scale=0.01),  # from the start
            lambda at: at.stuck(noise_scale=0.1 if at.elapsed < 0.3 else 0.05),
            lambda at: at.stuck() | at.with_losses(entropy=1.0),
            lambda at: at.stuck(learning={"gradient_steps": 32, "reward_loss": 0.1}),
        ],
    ),
}
"""Beginning of a rule's sentence -> what makes a history ill, and changes that look like it and are healthy."""


@pytest.mark.parametrize("seed", range(10))
def test_agents_whose_networks_add_nothing_trade_as_the_regression_does(seed: int) -> None:
    """It is no fault: no other sentence goes, and none is said of agents whose gate opens at times."""
    sentence = "The agents trade as the ridge regression does with which they began"
    shut = learning_sentences(history_of(seed, lambda at: at.with_losses(gate=0.02 * at.any)))
    assert shut[:-1] == learning_sentences(history_of(seed, lambda _: {}))
    assert shut[-1].startswith(sentence)
    gates: list[Change] = [
        lambda at: at.with_losses(gate=0.2 * at.any),
        lambda at: at.with_losses(gate=0.9 * (at.one.generation % 2)),
        lambda at: at.with_losses(gate=1.0),
    ]
    for gate in gates:
        assert sentence not in " ".join(learning_sentences(history_of(seed, gate)))


@pytest.mark.parametrize("said", RULES)
def test_a_rule_is_said_of_ill_histories_with_a_setting_that_exists_and_not_of_healthy_ones(said: str) -> None:
    ill, healthy = RULES[said]
    for seed in range(10):
        course, sentence = learning_sentences(history_of(seed, ill))
        assert sentence.startswith(said)
        assert "train longer" not in course
        settings = [word.rstrip(".") for word in sentence.split() if "=" in word]
        assert load_config("ddpg", settings).preset == "ddpg"
        assert settings
        for change in [*healthy, None]:
            assert len(learning_sentences(history_of(seed, change))) == 1, (seed, change)


def test_a_loss_that_is_huge_from_the_start_diverges_and_short_runs_are_not_judged() -> None:
    history = history_of(0, lambda at: at.with_losses(critic_loss=1e9 * at.any))
    assert learning_sentences(history)[1].startswith("Learning diverges")
    assert learning_sentences(history[:9]) == []


def test_the_mean_fitness_rises_while_the_interval_of_its_slope_is_above_zero() -> None:
    def rising(slope: float) -> list[str]:
        noise = np.random.default_rng(1).normal(0.0, 1.0, 30)
        return learning_sentences(
            [
                record(one).model_copy(update={"mean_fitness": mean, "validations": (mean,)})
                for one, mean in enumerate(slope * np.arange(1, 31) + noise, 1)
            ]
        )

    assert rising(2.0) == [f"The mean fitness of the last 10 generations still rises, {interval(2.0)}: train longer."]
    rounded = [record(one).model_copy(update={"mean_fitness": 1.5 + 1e-12 * one}) for one in range(1, 31)]
    assert "shows no clear rise" in learning_sentences(rounded)[0]
    assert rising(0.0) == [f"The mean fitness of the last 10 generations shows no clear rise, {interval(0.0)}."]


def interval(slope: float) -> str:
    values = slope * np.arange(21, 31) + np.random.default_rng(1).normal(0.0, 1.0, 30)[20:]
    middle, width = trend(values.tolist())
    return f"{signed(middle)} ± {number(width)} a generation"


def test_a_courseis_that_of_least_squares_and_wider_if_neighbours_correlate() -> None:
    # Residuals that alternate do not correlate positively.
    values = [
        3.0 * place + (-1.0) ** place * size for place, size in enumerate((1.0, 2.0, 1.5, 1.0, 2.5, 1.0, 1.5, 2.0))
    ]
    fitted = linregress(range(8), values)
    slope, width = trend(values)
    assert slope == pytest.approx(fitted.slope)
    assert width == pytest.approx(2.446912 * fitted.stderr)
    steps = np.random.default_rng(2).normal(0.0, 1.0, (300, 40)).cumsum(axis=1)
    claimed = np.mean([abs(slope) > width for slope, width in (trend(walk.tolist()) for walk in steps)])
    assert claimed < 0.5 * np.mean([linregress(range(40), walk).pvalue < 0.05 for walk in steps])
    assert trend([7.0] * 5) == (0.0, 0.0)


def test_the_gains_of_fitness_and_validation_have_the_intervals_of_welchs_test() -> None:
    history = history_of(3, RULES["The agents mostly fit the training episodes"][0])
    third = len(history) // 3
    fitness = [one.mean_fitness for one in history]
    test = ttest_ind(fitness[-third:], fitness[:third], equal_var=False)
    said = learning_sentences(history)[1].partition("mean fitness changed by ")[2].partition(",")[0]
    middle, width = (float(value.replace("−", "-")) for value in said.split(" ± "))
    low, high = test.confidence_interval(0.95)
    # Part of a degree of freedom counts as none.
    assert (middle - width, middle + width) == pytest.approx((low, high), rel=0.02)


def test_a_training_on_a_market_with_an_edge_is_healthy() -> None:
    config = small_config(learner=learner_with("counterfactual", gradient_steps=20, critic_learning_rate=0.003))
    panel = with_planted_edge(random_panel(config, days=600), config.trading, 0.5, seed=1)
    state = advance(start_training(config, panel), 12)
    assert state.history[-1].mean_fitness > state.history[0].mean_fitness
    assert len(learning_sentences(state.history)) == 1
