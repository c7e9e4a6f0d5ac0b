"""The phases of a generation, as functions that change a `TrainingState`: evaluate, train, evolve; then the holdout.

A phase computes without changing the state, and commits its results to it in one step at its end. So a phase that has
raised an exception can be called again, as if for the first time. A phase that has committed only returns its result.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import GenerationRecord, HoldoutResult, ancestors_after
from eigen_core.generation.executor import Episodes
from eigen_core.generation.state import EvaluationResult, TrainingState
from eigen_core.learning.fitness import Champion, fitness_and_scores, spread_starts
from eigen_core.learning.population_method import GenerationResult
from eigen_core.networks.population import agent_groups
from eigen_core.task.interface import Rollout


def training_slices(state: TrainingState) -> NDArray[np.int64]:
    """Draw the starts of each agent's training episodes in the coming generation: int64 `[agents, episodes]`."""
    config, starts = state.config, state.task.training_starts
    generation = state.generation + 1

    def draw(*key: int | str) -> NDArray[np.int64]:
        generator = keyed_generator(config.seed, generation, "evaluate", *key, "slices")
        drawn = generator.integers(len(starts), size=config.evaluation.slices)
        return np.array([starts[place] for place in drawn.tolist()], dtype=np.int64)

    if config.evaluation.shared_slices:
        return np.tile(draw("shared"), (config.population.size, 1))
    return np.stack([draw(agent) for agent in range(config.population.size)])


def fitness_slices(state: TrainingState) -> NDArray[np.int64]:
    """Return the starts (`Task.training_starts`) that all agents play in each generation: int64 `[episodes]`."""
    return spread_starts(state.task.training_starts, state.config.evaluation.fitness_slices)


def validation_slices(state: TrainingState) -> NDArray[np.int64]:
    """Return the starts (`Task.validation_starts`) that all agents play in each generation: int64 `[episodes]`."""
    return spread_starts(state.task.validation_starts, state.config.evaluation.validation_slices)


def next_episodes(state: TrainingState) -> Episodes:
    """Return the episodes that the evaluate phase of the coming generation plays."""
    return Episodes(
        generation=state.generation + 1,
        first_agent=0,
        training=training_slices(state),
        fixed=np.concatenate([fitness_slices(state), validation_slices(state)]),
        noise_scale=state.noise_scale,
        random=state.replay.written < state.config.exploration.random_steps,
        task_state=state.task_state,
    )


def evaluate(state: TrainingState) -> EvaluationResult:
    """Play every agent's training, fitness and validation episodes; commit transitions, results and champion."""
    if state.evaluated is not None:
        return state.evaluated
    episodes = next_episodes(state)
    if episodes.generation == 1 and state.heads.whole_episodes and state.task_state:
        # Agents that learn from their own episodes must learn by the moments with which these were played. Without
        # them, 9 to 15 % of the first probability ratios of preset pendulum-ppo are beyond the clip (seeds 1 to 3).
        rows = state.executor.play(state.population, episodes).transitions
        episodes = replace(episodes, task_state=state.task.state_after(state.task_state, rows))
    played = state.executor.play(state.population, episodes)
    rows = played.transitions
    with_noise = None if episodes.random else played.training.rewards
    fitness, validations, scores = fitness_and_scores(
        state.config.evaluation, with_noise, played.fixed.rewards, episodes.fixed, state.task.episode_steps
    )
    best, validation = int(np.argmax(scores)), slice(state.config.evaluation.fitness_slices, None)
    result = EvaluationResult(
        generation=episodes.generation,
        fitness=fitness,
        validations=validations,
        scores=scores,
        statistics=state.task.statistics(played.training),
        excess=state.task.excess(played.fixed.part(slice(best, best + 1), validation)),
        task_state=state.task.state_after(state.task_state, rows),
    )
    played_by = episodes.task_state
    champion = _champion_after(state, result, played_by)
    state.commit(replay=state.replay.appended(rows), champion=champion, evaluated=result, task_state=played_by)
    return result


def _champion_after(state: TrainingState, result: EvaluationResult, played_by: Mapping[str, Tensor]) -> Champion:
    best = int(np.argmax(result.scores))
    score, validation = float(result.scores[best]), float(result.validations[best])
    if state.champion is not None and state.champion.score >= score:
        return state.champion
    weights = state.population.weights[best].clone()
    return Champion(weights, validation, score, result.generation, best, played_by)


def train(state: TrainingState) -> dict[str, float] | None:
    """Train the agents that the population method selects; return the means of the learner's curves, by name.

    Returns None if no agent learns or the replay holds too little (`Learner.plan`). A copy of the population learns.
    `FloatingPointError`, and nothing is committed, if learning diverged: a weight or curve is not finite.
    """
    generation = state.generation + 1
    if state.learned is not None:
        return state.learned[1]
    if state.evaluated is None:
        raise RuntimeError("train was called before evaluate.")
    agents = state.method.learning(state.config)
    learns = agents.start < agents.stop
    plan = state.learner.plan(state.replay, state.population.size, generation) if learns else None
    if plan is None:
        state.commit(learned=(generation, None))
        return None
    population = state.population.clone()
    curves = state.executor.learn(population, agents, plan, state.replay, state.learning_task_state)
    statistics = {"gradient_steps": plan.gradient_steps, **_means(curves)}
    if not bool(population.weights.isfinite().all()):
        raise FloatingPointError("learning diverged: weights are not finite. Lower learner.*_learning_rate.")
    state.commit(population=population, learned=(generation, statistics))
    return statistics


def _means(curves: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each curve, ignoring NaN; 0 if all its values are NaN. Infinity is a `FloatingPointError`."""
    means = {}
    for name, curve in ((name, values.numpy()) for name, values in curves.items()):
        if np.isinf(curve).any():
            raise FloatingPointError(
                f"learning diverged: {name} is not finite. Lower learner.*_learning_rate or learner.reward_scale."
            )
        means[name] = float(np.nanmean(curve)) if not np.isnan(curve).all() else 0.0
    return means


def evolve(state: TrainingState) -> GenerationRecord:
    """Breed the next population and complete the generation; `FloatingPointError`, without change, if it diverged."""
    result, champion = state.evaluated, state.champion
    if result is None or champion is None:
        if state.history:
            return state.history[-1]
        raise RuntimeError("evolve was called before evaluate.")
    config, generation = state.config, result.generation
    learning, distance = state.learned[1] if state.learned else None, policy_distance(state)
    if distance is not None and not math.isfinite(distance):
        raise FloatingPointError("learning diverged: actions are not finite. Lower learner.*_learning_rate.")
    ended = GenerationResult(
        generation=generation,
        population=state.population,
        fitness=result.fitness,
        learned=learning is not None,
        champion=champion,
        state=state.method_state,
    )
    bred = state.method.breed(ended)
    record = GenerationRecord(
        generation=generation,
        fitness=tuple(result.fitness.tolist()),
        best_fitness=float(result.fitness.max()),
        mean_fitness=float(result.fitness.mean()),
        validations=tuple(result.validations.tolist()),
        validation=float(result.validations.max()),
        champion_validation=champion.validation,
        champion_score=champion.score,
        champion_generation=champion.generation,
        champion_agent=champion.agent,
        champion_excess=result.excess if champion.generation == generation else state.history[-1].champion_excess,
        learning=learning,
        trading=result.statistics,
        transitions=state.replay.size,
        replay_capacity=state.replay.capacity,
        noise_scale=state.noise_scale,
        evolution=dict(bred.statistics),
        descent=bred.lineages,
        ancestors=ancestors_after(state.history, bred.lineages, generation, champion.generation),
        policy_distance=distance,
        weights_sha256=tensors_sha256({"weights": bred.population.weights}),
        replay_sha256=tensors_sha256(state.replay.tensors()),
    )
    exploration = config.exploration
    steps = config.evaluation.slices * state.task.episode_steps
    state.commit(
        population=bred.population,
        method_state=bred.state,
        task_state=result.task_state,
        noise_scale=max(exploration.minimum, state.noise_scale * exploration.decay**steps),
        evaluated=None,
        learned=None,
        history=state.history.followed_by(record),
        generation=generation,
    )
    return record


def hold_out(state: TrainingState) -> HoldoutResult | None:
    """Let the champion and the initial population, untrained, play the holdout episodes; return their results.

    Returns None if the task holds out no data, or there is no champion yet. Call it once, at the end of a run: choosing
    anything by its result would make these episodes validation episodes.
    """
    config = state.config
    if state.champion is None or not state.task.holdout_starts:
        return None
    slices = spread_starts(state.task.holdout_starts, config.evaluation.holdout_episodes)
    initial = state.initial_weights()
    groups = agent_groups(len(initial), state.playing_size)

    def play(weights: torch.Tensor) -> Rollout:
        return state.task.roll_out(weights, np.tile(slices, (len(weights), 1)))

    random_rewards = []
    with state.task.at(state.champion.task_state):
        champion = play(state.champion.weights[None])
        for index, agents in enumerate(groups):
            random_rewards.append(play(initial[agents]).rewards)
            report_progress("holdout", index + 1, len(groups))
    return HoldoutResult(
        generation=state.generation,
        slices=tuple(int(day) for day in slices),
        champion_rewards=tuple(champion.rewards[0].tolist()),
        champion_excess=state.task.excess(champion),
        champion_statistics=tuple(state.task.statistics(champion).items()),
        random_rewards=tuple(np.concatenate(random_rewards).mean(axis=1).tolist()),
    )


# Number of observations in the replay for which `policy_distance` compares the actions of all agents.
_COMPARED = 16


@torch.no_grad()
def policy_distance(state: TrainingState) -> float | None:
    """Return how far the actions of two agents differ, without noise, on the same observations from the replay.

    It is the mean over all pairs of agents, observations and values of an action of the absolute difference, as a
    fraction of the value's range (of 1 if that is infinite). Returns None until the replay holds enough transitions.
    """
    task, replay, config = state.task, state.replay, state.config
    sampler = task.sampler(replay, _COMPARED)
    if sampler is None or replay.size < _COMPARED:
        return None
    generator = keyed_generator(config.seed, state.generation + 1, "evolve", "population", "observations")
    block = int(sampler.draw_blocks(generator, (1,))[0])
    slots = torch.tensor(sampler.draw(generator, block), device=state.device)
    played = []
    for agents in agent_groups(state.population.size, state.group_size):
        weights, critic = state.population.weights[agents], task.critic_layout.size
        with task.at(state.learning_task_state):
            observations = task.transitions(replay, slots.expand(len(weights), -1), block).observations
            encoding = task.encode(task.critic_layout.views(weights[:, :critic]), observations)
        actions = task.policy(task.actor_layout.views(weights[:, critic:]), encoding).mode
        played.append(task.box.fractions(actions).flatten(1).cpu().numpy())
    return mean_distance(np.concatenate(played))


def mean_distance(points: NDArray[np.float32]) -> float:
    """Return the mean absolute difference of two rows' values in a column, over all pairs of `[rows, columns]`.

    In a sorted column of n values the k-th, from 0, is the larger one of k pairs and the smaller one of n - 1 - k.
    """
    count = len(points)
    times = 2.0 * np.arange(count) - (count - 1)
    differences = (times[:, None] * np.sort(points.astype(np.float64), axis=0)).sum(axis=0)
    return float(differences.mean() / (count * (count - 1) / 2))
