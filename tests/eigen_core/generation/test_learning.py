"""The learners learn: on a market that leaks the return after the fill, and on one with a planted edge."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.learning.leak import GENERATIONS, LEARNING, SEEDS, learning_curve, random_reward
from benchmarks.synthetic import planted_edge_market
from eigen_core.common.records import HoldoutResult
from eigen_core.config import Config
from eigen_core.generation import evaluate, evolve, hold_out, start_training, train


def last_rewards(seed: int, with_gradients: int) -> dict[str, float]:
    generations = dict.fromkeys(LEARNING, with_gradients) | {"evolution alone": GENERATIONS}
    return {
        learning: list(learning_curve(learning, "decision", seed, generations[learning]))[-1] for learning in LEARNING
    }


def holds(seeds: Sequence[int], with_gradients: int = GENERATIONS) -> None:
    for seed in seeds:
        floor, reached = random_reward(seed), last_rewards(seed, with_gradients)
        assert floor > 0.0, "a ratio to agents that lose says nothing"
        assert min(reached.values()) >= 5.0 * floor, (seed, floor, reached)
        assert reached["gradients alone"] >= reached["evolution alone"], (seed, reached)
        assert reached["both"] >= 0.9 * max(reached.values()), (seed, reached)


@pytest.mark.thorough
def test_evolution_gradients_and_both_learn_a_leak() -> None:
    # Four generations with gradients must be worth more than all that evolution alone gets.
    holds(SEEDS[:1], with_gradients=4)


@pytest.mark.slow
def test_evolution_gradients_and_both_learn_a_leak_on_every_seed() -> None:
    holds(SEEDS)


def planted_result(seed: int, generations: int, agents: int) -> HoldoutResult:
    config = Config(
        preset="quickstart",
        seed=seed,
        device="cpu",
        market={"window": 2},
        network={"scales": [1]},
        population={"size": agents},
        replay={"minimum": 1_000},
        learner={"gradient_steps": 16},
    )
    state = start_training(config, planted_edge_market(config, 1_200, 8, seed))
    for _ in range(generations):
        evaluate(state)
        train(state)
        evolve(state)
    result = hold_out(state)
    assert result is not None
    return result


def beats_random_clearly(result: HoldoutResult) -> bool:
    return result.champion_reward > max(2.0 * result.random_reward, float(np.max(result.random_rewards)))


@pytest.mark.thorough
def test_the_champion_finds_a_planted_edge() -> None:
    assert beats_random_clearly(planted_result(seed=2, generations=6, agents=6))


@pytest.mark.slow
def test_the_champion_finds_a_planted_edge_on_every_seed() -> None:
    assert all(beats_random_clearly(planted_result(seed, generations=25, agents=16)) for seed in SEEDS)
