"""Every learner and population method: agents get better; any grouping and a resume give the same bits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import learner_with, method_with, random_panel, small_config
from training_cases import advance, content_of, resumed_from, saved_of

from benchmarks.learning.leak import GENERATIONS, LEARNING, SEEDS, learning_curve, oracle_reward, random_reward
from benchmarks.synthetic import planted_edge_market
from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.records import HoldoutResult
from eigen_core.config import Config, OffPolicyConfig, merge, registry
from eigen_core.generation import (
    TrainingState,
    evaluate,
    evolve,
    hold_out,
    restore,
    snapshot,
    start_training,
    train,
)
from eigen_core.learning.interface import learner_settings
from eigen_core.machine import chunk_sizes
from eigen_core.planning.sizes import Sizes
from eigen_core.reporting.plots import write_plots
from eigen_core.task import TaskData

LEARNERS, METHODS = list(registry.LEARNERS), list(registry.METHODS)
KINDS: dict[str, dict[str, Any]] = {
    **{learner: {"learner": {"algorithm": learner}} for learner in LEARNERS},
    **{method: {"evolution": method_with(method, sync_generations=1)} for method in METHODS},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def config_with(kind: str, **sections: Any) -> Config:
    return small_config(**merge(KINDS[kind], sections))


def begin(config: Config) -> TrainingState:
    return start_training(config, random_panel(config))


@every_kind
def test_a_resumed_run_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    config = config_with(kind)
    state = advance(begin(config), 2)
    learned = state.history[-1].learning
    assert learned is not None
    assert {curve.name for curve in state.learner.curves} <= learned.keys()
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state))
    resumed = resumed_from(directory, begin, config)
    assert content_of(resumed) == content_of(state)
    assert content_of(advance(resumed, 2)) == content_of(advance(state, 2))
    assert hold_out(state) is not None
    assert len(write_plots(state.history, state.telemetry, tmp_path / "plots", state.learner.curves)) == 5


@every_kind
@pytest.mark.cpu
def test_groups_change_no_bit(kind: str) -> None:
    # The last of four is a group of its own.
    populations = [{"size": 4, "group_size": size} for size in (0, 1, 3)]
    contents = [content_of(advance(begin(config_with(kind, population=one)), 3)) for one in populations]
    assert contents[0] == contents[1] == contents[2]


# A learner that replays and one that does not.
@pytest.mark.parametrize("learner", ["td3", "sac"])
def test_bits_do_not_depend_on_how_much_noise_is_drawn_at_a_time(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    # Of one of three steps, of two, of all.
    for megabytes in (0.0, 0.014, 1.0):
        monkeypatch.setattr(chunk_sizes, "_NOISE", chunk_sizes._NOISE._replace(cpu=megabytes))
        contents.append(content_of(advance(begin(config_with(learner)), 1)))
    assert contents[0] == contents[1] == contents[2]


RATES: dict[str, dict[str, Any]] = {
    "ddpg": {"actor_learning_rate": 3e-3},
    "td3": {"actor_learning_rate": 3e-3},
    "sac": {"actor_learning_rate": 1e-2, "initial_temperature": 0.05, "entropy_target": -3.0},
    "ppo": {"actor_learning_rate": 1e-2, "epochs": 10},
}
"""Of each learner that needs no more than a `Task`."""


@pytest.mark.parametrize("learner", RATES)
def test_it_learns_to_name_the_number_that_is_shown(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "pointer", "pointer_task:PointerTask")
    common = {"gradient_steps": 40, "accumulation_steps": 1, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0}
    rates = {"critic_learning_rate": 1e-2, "tau": 0.1, **RATES[learner]}
    config = config_with(learner, learner=learner_with(learner, **common, **rates), evolution={"enabled": False})
    state = advance(start_training(config.model_copy(update={"task": "pointer"}), None), 8)
    first, last = state.history[0], state.history[-1]
    assert sum(last.validations) > 0.6 * sum(first.validations)


POINTER: dict[str, dict[str, Any]] = {
    "genetic": {},
    "cem": {"distribution_variance": 0.01},
    "erl": {"sync_generations": 1},
    "pbt": {"sync_generations": 2},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thorough
def test_it_finds_agents_that_name_the_number_that_is_shown(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "pointer", "pointer_task:PointerTask")
    learner = {"gradient_steps": 20, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0, "tau": 0.1}
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
    config = small_config(
        population={"size": 6}, learner={**learner, **rates}, evolution={"method": method, **POINTER[method]}
    ).model_copy(update={"task": "pointer"})
    state = advance(start_training(config, None), 12)
    first, last = state.history[0], state.history[-1]
    assert max(last.fitness) > 0.75 * max(first.fitness)
    assert sum(last.fitness) > 0.85 * sum(first.fitness)


@pytest.mark.parametrize(("learner", "counts"), [("ddpg", "critic_steps"), ("sac", "steps")])
def test_the_critic_of_cem_and_its_optimizer_have_learned_in_all_generations(learner: str, counts: str) -> None:
    state = advance(begin(config_with("cem", learner={"algorithm": learner})), 3)
    learned = sum(record.learning is not None for record in state.history)
    assert learned > 1
    drawn = state.population.rows(slice(3, 5))
    steps = learner_settings(state.config, OffPolicyConfig).gradient_steps
    assert drawn.state[counts].tolist() == [learned * steps] * 2
    critic = state.task.critic_layout.size
    for tensor in (drawn.weights, drawn.state["targets"], drawn.state["second_moment"]):
        assert torch.equal(tensor[0, :critic], tensor[1, :critic])
    assert not torch.equal(drawn.state["targets"][:, :critic], drawn.weights[:, :critic])
    assert not torch.equal(drawn.weights[0, critic:], drawn.weights[1, critic:])


def test_a_distribution_that_no_run_can_have_is_refused() -> None:
    state = advance(begin(config_with("cem")), 1)
    saved = saved_of(state)
    saved.tensors["evolution"]["variance"][2] = -1.0
    with pytest.raises(UnfitSnapshotError, match=r"evolution\.safetensors holds variance from -1"):
        restore(begin(config_with("cem")), saved)


@pytest.mark.parametrize(("method", "learning"), [("cem", 3), ("erl", 0), ("erl", 5)])
def test_more_or_fewer_agents_than_can_learn_are_refused(method: str, learning: int) -> None:
    config = small_config(evolution={"method": method, "learning_agents": learning})
    with pytest.raises(InputError, match=rf"evolution\.learning_agents {learning} .*population\.size 5"):
        begin(config)
    with pytest.raises(InputError, match="learning_agents"):
        Sizes.of(config, TaskData(random_panel(config)))


def last_rewards(seed: int, with_gradients: int) -> dict[str, float]:
    generations = dict.fromkeys(LEARNING, with_gradients) | {"evolution alone": GENERATIONS}
    return {
        learning: list(learning_curve(learning, "decision", seed, generations[learning]))[-1] for learning in LEARNING
    }


SHARES = {"evolution alone": 0.2, "gradients alone": 0.6, "both": 0.6}
"""Least share of an oracle's reward on each market."""
MEAN_OF_EVOLUTION, UNTAUGHT = 0.3, 0.15


@pytest.mark.parametrize(
    ("seeds", "with_gradients"),
    [
        # Four generations with gradients must be worth more than all that evolution alone gets.
        pytest.param(SEEDS[:1], 4, marks=pytest.mark.thorough),
        pytest.param(SEEDS, GENERATIONS, marks=pytest.mark.slow),
    ],
)
def test_evolution_gradients_and_both_learn_a_leak(seeds: Sequence[int], with_gradients: int) -> None:
    of_evolution = []
    for seed in seeds:
        oracle = oracle_reward(seed)
        assert random_reward(seed) < UNTAUGHT * oracle, "agents that have not learned reach as much"
        reached = {learning: reward / oracle for learning, reward in last_rewards(seed, with_gradients).items()}
        assert all(reached[learning] >= least for learning, least in SHARES.items()), (seed, reached)
        assert reached["gradients alone"] >= reached["evolution alone"], (seed, reached)
        assert reached["both"] >= 0.9 * max(reached.values()), (seed, reached)
        of_evolution.append(reached["evolution alone"])
    assert np.mean(of_evolution) >= MEAN_OF_EVOLUTION, of_evolution


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


@pytest.mark.parametrize(
    ("seed", "generations", "agents"),
    [
        pytest.param(2, 6, 6, marks=pytest.mark.thorough),
        *(pytest.param(seed, 25, 16, marks=pytest.mark.slow) for seed in SEEDS),
    ],
)
def test_the_champion_finds_a_planted_edge(seed: int, generations: int, agents: int) -> None:
    result = planted_result(seed, generations, agents)
    assert result.champion_reward > max(2.0 * result.random_reward, float(np.max(result.random_rewards)))
