"""The phases of a generation as functions over the state: evaluate, train, evolve.

Each reads committed state, computes beside it, and commits in one step at its end. A phase that raised can be called
again and leaves what it would have left; a phase that has committed returns its result when called again.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.checkpoint import tensors_sha256
from eigen_core.evaluation import Rollout, mean_of_lowest, spread_starts
from eigen_core.evolution import Champion, breed
from eigen_core.generation.state import EvaluationResult, TrainingState
from eigen_core.generation.undo import population_to_learn
from eigen_core.learners import DdpgLearner, LearningCurves, LearningPlan
from eigen_core.population import Population, agent_groups
from eigen_core.progress import report_progress
from eigen_core.randomness import keyed_generator
from eigen_core.records import Descent, GenerationRecord, LearningStatistics, TradingStatistics
from eigen_core.replay import DistinctDaySampler, EpisodeBatch


def training_slices(state: TrainingState) -> NDArray[np.int64]:
    """First day of each agent's training episodes in the coming generation: `[agents, slices]`."""
    config, starts = state.config, state.panel.training_starts(state.config)
    generation = state.generation + 1

    def draw(*key: int | str) -> NDArray[np.int64]:
        generator = keyed_generator(config.seed, generation, "evaluate", *key, "slices")
        return generator.integers(starts.start, starts.stop, config.evaluation.slices)

    if config.evaluation.shared_slices:
        return np.tile(draw("shared"), (config.population.size, 1))
    return np.stack([draw(agent) for agent in range(config.population.size)])


def validation_slices(state: TrainingState) -> NDArray[np.int64]:
    """First day of the validation episodes, the same for all agents and generations: `[slices]`."""
    return spread_starts(state.panel.validation_starts(state.config), state.config.evaluation.validation_slices)


def _exploration_noise(state: TrainingState, agents: slice) -> torch.Tensor:
    config = state.config
    shape = (config.evaluation.slices, config.trading.episode_days, state.panel.assets, 2)
    rows = []
    for agent in range(agents.start, agents.stop):
        generator = keyed_generator(config.seed, state.generation + 1, "evaluate", agent, "noise")
        rows.append(generator.standard_normal(shape, dtype=np.float32))
    return torch.tensor(np.stack(rows), device=state.device).mul_(state.noise_scale)


def _trading_statistics(rollouts: list[Rollout]) -> TradingStatistics:
    def values(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(rollout.summary, name).cpu().numpy() for rollout in rollouts]).astype(np.float64)

    trades, wins = values("trades"), values("wins")
    return TradingStatistics(
        trades=float(trades.mean()),
        win_rate=float(wins.sum() / max(trades.sum(), 1.0)),
        idle_days=float(values("idle_days").mean()),
        fees=float(values("fees").mean()),
    )


def evaluate(state: TrainingState) -> EvaluationResult:
    """Play every agent's training and validation episodes; commit transitions, fitness and champion."""
    if state.evaluated is not None:
        return state.evaluated
    config, generation = state.config, state.generation + 1
    starts, validation = training_slices(state), validation_slices(state)
    groups = agent_groups(state.population.size, config.population.group_size)
    trained, validated = [], []
    for index, agents in enumerate(groups):
        weights = state.population.weights[agents]
        noise = _exploration_noise(state, agents)
        trained.append(state.evaluator.roll_out(weights, starts[agents], noise, record=True))
        validated.append(state.evaluator.roll_out(weights, np.tile(validation, (len(weights), 1))))
        report_progress("evaluate", index + 1, len(groups))
    result = EvaluationResult(
        generation=generation,
        fitness=mean_of_lowest(np.concatenate([rollout.rewards for rollout in trained]), config.evaluation.lowest),
        validations=mean_of_lowest(
            np.concatenate([rollout.rewards for rollout in validated]), config.evaluation.validation_lowest
        ),
        trading=_trading_statistics(trained),
    )
    champion = _champion_after(state, result)
    episodes = _joined([rollout.episodes for rollout in trained if rollout.episodes is not None])
    state.commit(replay=state.replay.appended(episodes), champion=champion, evaluated=result)
    return result


def _joined(parts: list[EpisodeBatch]) -> EpisodeBatch:
    return EpisodeBatch(
        first_days=torch.cat([part.first_days for part in parts]),
        portfolios=torch.cat([part.portfolios for part in parts]),
        actions=torch.cat([part.actions for part in parts]),
        rewards=torch.cat([part.rewards for part in parts]),
    )


def _champion_after(state: TrainingState, result: EvaluationResult) -> Champion:
    best = int(np.argmax(result.validations))
    validation = float(result.validations[best])
    if state.champion is not None and state.champion.validation >= validation:
        return state.champion
    return Champion(state.population.weights[best].clone(), validation, result.generation, best)


def learning_plan(state: TrainingState) -> LearningPlan | None:
    """Draw the batches of the coming train phase; None where there is nothing to learn from yet."""
    config = state.config
    learner, generation = config.learner, state.generation + 1
    if learner.gradient_steps == 0 or state.replay.size < config.replay.minimum:
        return None
    last_day = state.panel.splits.train.stop
    block_days = last_day
    if state.network.block_bound and learner.block_days:
        block_days = min(learner.block_days, last_day)
    sampler = DistinctDaySampler(state.replay.stored_days())
    admissible = sampler.block_starts(block_days, last_day, learner.batch_size)
    if len(admissible) == 0:
        return None
    generator = keyed_generator(config.seed, generation, "train", "shared", "blocks")
    batches = (learner.gradient_steps, learner.accumulation_steps)
    first_days = admissible[generator.integers(0, len(admissible), batches)]
    slots = np.empty((config.population.size, *batches, learner.batch_size), dtype=np.int64)
    for agent in range(config.population.size):
        generator = keyed_generator(config.seed, generation, "train", agent, "batches")
        for step, index in np.ndindex(*batches):
            first_day = int(first_days[step, index])
            slots[agent, step, index] = sampler.draw(
                generator, learner.batch_size, first_day, first_day + block_days - 1
            )
    return LearningPlan(
        slots=torch.tensor(slots, device=state.device),
        first_days=tuple(tuple(int(day) for day in row) for row in first_days),
        block_days=block_days,
        earlier_steps=state.generation * learner.gradient_steps,
    )


def train(state: TrainingState) -> LearningStatistics | None:
    """Let every agent learn from the replay; what a failure leaves half-learned is taken back (`undo`).

    Raises:
        FloatingPointError: learning diverged; nothing is committed.
        RuntimeError: the generation was not evaluated.
    """
    generation = state.generation + 1
    if state.learned is not None:
        return state.learned[1]
    if state.evaluated is None:
        raise RuntimeError("train was called before evaluate.")
    plan = learning_plan(state)
    if plan is None:
        state.commit(learned=(generation, None))
        return None
    with population_to_learn(state) as population:
        statistics = _learn(state, population, plan)
        state.commit(population=population, learned=(generation, statistics), half_learned=False)
    return statistics


def _learn(state: TrainingState, population: Population, plan: LearningPlan) -> LearningStatistics:
    """Let every agent of `population` learn, in place."""
    learner = DdpgLearner(state.network, state.config, state.replay)
    groups = agent_groups(population.size, state.config.population.group_size)
    total, curves = len(groups) * plan.gradient_steps, []
    done = 0

    def count_step() -> None:
        nonlocal done
        done += 1
        report_progress("train", done, total)

    for agents in groups:
        part = replace(plan, slots=plan.slots[agents])
        curves.append(learner.learn(population.rows(agents), part, count_step))
    statistics = _learning_statistics(LearningCurves.of_groups(curves))
    if not bool(population.weights.isfinite().all()):
        raise FloatingPointError("learning diverged: weights are not finite. Lower the learning rates.")
    return statistics


def _learning_statistics(curves: LearningCurves) -> LearningStatistics:
    means = {}
    for name in LearningCurves.FIELDS:
        curve = getattr(curves, name).numpy()
        if not np.isfinite(curve[~np.isnan(curve)]).all() or np.isnan(curves.critic_loss.numpy()).any():
            raise FloatingPointError(
                f"learning diverged: {name} is not finite. Lower the learning rates or reward_scale."
            )
        means[name] = float(np.nanmean(curve)) if not np.isnan(curve).all() else 0.0
    return LearningStatistics(gradient_steps=curves.critic_loss.shape[1], **means)


def evolve(state: TrainingState) -> GenerationRecord:
    """Breed the next population, complete the generation and return its record.

    Raises:
        RuntimeError: the generation was not evaluated.
    """
    result, champion = state.evaluated, state.champion
    if result is None or champion is None:
        if state.history:
            return state.history[-1]
        raise RuntimeError("evolve was called before evaluate.")
    config, generation = state.config, result.generation
    mutation = state.mutation.after(champion.validation, config.evolution)
    if config.evolution.enabled:
        generator = keyed_generator(config.seed, generation, "evolve", "population", "breeding")
        population, descent = breed(
            state.population, result.fitness, champion, generation, mutation, config.evolution, generator
        )
    else:
        population = state.population
        descent = tuple(Descent(agent=agent, origin="elite", parents=(agent,)) for agent in range(population.size))
    record = GenerationRecord(
        generation=generation,
        fitness=tuple(result.fitness.tolist()),
        best_fitness=float(result.fitness.max()),
        mean_fitness=float(result.fitness.mean()),
        validations=tuple(result.validations.tolist()),
        validation=float(result.validations.max()),
        champion_validation=champion.validation,
        champion_generation=champion.generation,
        champion_agent=champion.agent,
        learning=state.learned[1] if state.learned else None,
        trading=result.trading,
        transitions=state.replay.size,
        replay_capacity=state.replay.capacity,
        noise_scale=state.noise_scale,
        mutation_rate=mutation.rate,
        mutation_std=mutation.std,
        descent=descent,
        weights_sha256=tensors_sha256({"weights": population.weights}),
        replay_sha256=tensors_sha256(state.replay.tensors()),
    )
    exploration = config.exploration
    days_traded = config.evaluation.slices * config.trading.episode_days
    state.commit(
        population=population,
        mutation=mutation,
        noise_scale=max(exploration.minimum, state.noise_scale * exploration.decay**days_traded),
        evaluated=None,
        learned=None,
        history=state.history.followed_by(record),
        generation=generation,
    )
    return record
