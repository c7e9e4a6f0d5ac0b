"""The linear part of agents: where it begins, what learning leaves of it, and how much of a network is added to it."""

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import LEARNER_OF_TASK, LEARNERS_OF_ANY_TASK, learner_with, random_panel, small_config
from sklearn.linear_model import Ridge
from training_cases import advance, market_of

from benchmarks.learning.scores import agent_scores, information_coefficient
from benchmarks.synthetic import leaking_market
from eigen_core.common.errors import InputError
from eigen_core.config import Config, merge
from eigen_core.generation import TrainingState, start_training
from eigen_core.judging.backtest import backtest_class
from eigen_core.learning.base_learners import BatchPlan
from eigen_core.market import Panel
from eigen_core.networks.actions import ExpectedOutcomes
from eigen_core.task.outcome_table import OutcomeTable
from eigen_core.task.panel import PanelTask
from eigen_core.trading.prices import Prices
from eigen_core.trading.ridge import PENALTIES, relative_gains

COUNTERFACTUAL: dict[str, Any] = {
    "algorithm": "counterfactual", "target_bins": 3, "batch_size": 8, "reward_scale": 0.1,
    "reward_clip": 0.4, "critic_learning_rate": 1e-2,
}  # fmt: skip


def begun(days: int = 260, **sections: Any) -> TrainingState:
    config = small_config(**merge({"learner": COUNTERFACTUAL, "network": {"linear_scales": [1, 5]}}, sections))
    return start_training(config, random_panel(config, days))


def slow_standardised(gains: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Scale each day's deviations to the size of all `fitted` ones; five further assets have that size on every day."""
    deviations = np.zeros_like(gains)
    for day, gained in enumerate(gains):
        known = ~np.isnan(gained[:, 0])
        if known.any():
            deviations[day, known] = gained[known] - (gained[known].mean(axis=0) if known.sum() > 1 else 0.0)
    usual = np.mean([deviations[cell] ** 2 for cell in zip(*np.nonzero(fitted), strict=True)])
    scaled = np.full_like(gains, np.nan)
    for day, gained in enumerate(gains):
        known = ~np.isnan(gained[:, 0])
        squares = sum(float((deviations[day, asset] ** 2).mean()) for asset in np.flatnonzero(known))
        factor = np.sqrt(usual / ((squares + 5.0 * usual) / (known.sum() + 5.0)))
        scaled[day, known] = gained[known] + deviations[day, known] * (factor - 1.0)
    return scaled


def ridge_scores(state: TrainingState) -> np.ndarray:
    """Return the scores of the regression on a day's features, or on these and their products or averages.

    Further features must err less in the folds by more than one standard error. scikit-learn's penalty is the same for
    all columns, so a column is divided by the root of the factor on its penalty.
    """
    assert isinstance(state.task, PanelTask)
    panel, config, held = state.task.panel, state.config, state.config.trading.holding_bars
    features = panel.features[:, : panel.assets].astype(np.float64)
    days_before = np.concatenate([np.zeros((4, *features.shape[1:])), features])
    averages = np.stack([days_before[day : day + 5].mean(axis=0) for day in range(len(features))])
    short, long = (
        values / np.sqrt(np.square(values[panel.splits.train]).mean(axis=(0, 1))) for values in (features, averages)
    )
    pairs = combinations_with_replacement(range(short.shape[2]), 2)
    groups = [long]
    if config.network.linear_degree == 2:
        groups.append(np.stack([short[..., one] * short[..., other] for one, other in pairs], axis=-1))
    gains, known, ended = relative_gains(panel, Prices.of_panel(panel, torch.device("cpu")), config.trading)
    first, stop = config.market.window - 1, panel.splits.train.stop
    edges = np.linspace(first, stop, 6).astype(int)
    assert (np.diff(edges) > held).all()
    day = np.arange(len(gains))[:, None]
    folds = [known & (day >= low) & (day < high) & (ended < high) for low, high in pairwise(edges)]
    every = known & (day >= first) & (day < stop) & (ended < stop)
    if config.network.linear_standardised:
        gains = slow_standardised(gains[..., None], known & (ended < stop))[..., 0]

    def best(group: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for penalty, factor in product(PENALTIES, (1.0,) if group is None else (1.0, 10.0, 100.0)):
            inputs = short if group is None else np.concatenate([short, group / factor**0.5], axis=2)
            errors = []
            for fold in folds:
                rest = np.any([other for other in folds if other is not fold], axis=0)
                model = Ridge(alpha=penalty).fit(inputs[rest], gains[rest])
                errors.append(np.square(model.predict(inputs[fold]) - gains[fold]).sum())
            scores = Ridge(alpha=penalty).fit(inputs[every], gains[every]).predict(inputs.reshape(-1, inputs.shape[2]))
            found.append((np.array(errors), scores.reshape(gains.shape)))
        return min(found, key=lambda one: float(one[0].sum()))

    chosen, other = best(None), min(map(best, groups), key=lambda one: float(one[0].sum()))
    lower = chosen[0] - other[0]
    scores = (other if lower.mean() > lower.std(ddof=1) / 5**0.5 else chosen)[1]
    normalised: np.ndarray = (scores - scores[every].mean()) / scores[every].std()
    return normalised


def predicted(state: TrainingState, agent: int, moment: int) -> tuple[ExpectedOutcomes, np.ndarray]:
    """Return an agent's predictions at a moment, and the scaled rewards, NaN where unknown: `[assets, targets]`."""
    task, row = market_of(state), state.population.weights[agent : agent + 1]
    critic, actor = torch.split(row, [task.critic_layout.size, task.actor_layout.size], dim=1)
    observed, outcomes = task.outcomes(torch.tensor([[moment]]), 0)
    encoding = task.encode(task.critic_layout.views(critic), observed)
    expected = task.expected_outcomes(task.actor_layout.views(actor), encoding)
    rewards = (outcomes.rewards * 0.1).clamp(-0.4, 0.4).masked_fill(~outcomes.known[..., None], torch.nan)
    return expected, rewards[0, 0].double().numpy()


def moments_held_out(state: TrainingState) -> list[int]:
    return [int(moment) for batch, _ in market_of(state).held_out(8) for moment in batch]


@pytest.mark.parametrize(("degree", "standardised"), [(1, False), (2, False), (1, True)])
def test_agents_begin_with_the_ridge_regression_alone(degree: int, standardised: bool) -> None:
    state = begun(network={"linear_degree": degree, "linear_standardised": standardised})
    task, config = market_of(state), state.config
    targets = torch.linspace(config.trading.min_target, config.trading.max_target, 3, dtype=torch.float64)
    days = torch.arange(task.training_starts[0], task.panel.splits.train.stop)
    table = OutcomeTable.of(task.prices, config.trading, days, targets)
    scores = ridge_scores(state)[table.days]
    rewards = table.rewards.double().numpy()
    known = ~np.isnan(rewards[..., 0])
    if standardised:
        rewards = slow_standardised(rewards, known)
    rewards = (rewards * 0.1).clip(-0.4, 0.4)
    above, below = np.zeros(3), 0.0
    for day in range(len(scores)):
        rank = scores[day, known[day]] - scores[day, known[day]].mean()
        gain = rewards[day, known[day]] - rewards[day, known[day]].mean(axis=0)
        above, below = above + rank @ gain, below + rank @ rank
    expected, _ = predicted(state, 2, 7)
    means = rewards[known].mean(axis=0)
    wanted = scores[7][:, None] * (above / below) + means
    np.testing.assert_allclose(expected.rewards[0, 0], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(expected.shares[0, 0, 0], table.shares.double().numpy()[known].mean(axis=0), rtol=1e-4)


@pytest.mark.parametrize("learner", [*LEARNERS_OF_ANY_TASK, "direct"])
def test_actors_begin_with_the_ridge_regression_alone_and_learning_leaves_it(learner: str) -> None:
    task, section = LEARNER_OF_TASK.get(learner, "market"), learner_with(learner, weight_decay=1.0)
    state = begun(task=task, learner=section, evolution={"enabled": False})
    scores, first = ridge_scores(state), state.config.market.window - 1
    ranking = scores[first:].ravel().argsort()
    for weights in state.population.weights:
        steps = np.diff(agent_scores(state, weights)[first:].ravel()[ranking])
        assert steps.min() > -1e-3
        assert steps.max() > 0.01
    critic, learned = state.task.critic_layout.size, state.task.actor_layout.learned
    before = state.population.weights.clone()
    changed = (advance(state, 2).population.weights != before).any(dim=0)[critic:]
    assert bool(changed[:learned].any())
    assert not bool(changed[learned:].any())


def market_for_networks(config: Config, days: int = 1_500, assets: int = 20) -> Panel:
    """Return a market whose leak of the coming return is seen times the sign that a second feature has."""
    panel = leaking_market(config, days, assets, 1)
    sign = np.sign(np.random.default_rng(1).standard_normal(panel.features.shape[:2])).astype(np.float32)
    leak, other = panel.feature_names.index("leak"), 1 - panel.feature_names.index("leak")
    features = panel.features.copy()
    features[..., leak] *= sign
    features[..., other] = sign
    return replace(panel, features=features)


@pytest.mark.parametrize(("least", "every"), [(0.0, None), (1.5, None), (0.0, "2d")])
def test_the_gate_is_the_shrunk_slope_on_days_from_which_the_network_has_not_learned(
    least: float, every: str | None
) -> None:
    learned = COUNTERFACTUAL | {"gate_standard_errors": least, "gradient_steps": 8}
    config = small_config(learner=learned, network={"linear_scales": [1, 5]}, trading={"decide_every": every})
    state = start_training(config, market_for_networks(config, 400, 5))
    task, learner = market_of(state), state.learner
    plan = learner.plan(state.replay, state.population.size, 1)
    assert isinstance(plan, BatchPlan)
    held_out = moments_held_out(state)
    assert held_out == list(range(held_out[0], held_out[0] + len(held_out)))
    days = task.outcomes(torch.arange(held_out[-1] + 1)[None], 0)[0].days[0]
    assert days[int(plan.slots.max())] + state.config.trading.holding_bars < days[held_out[0]]
    group = learner.learn(state.population, plan, state.replay, lambda: None).group
    gates = task.actor_layout.views(group.weights[:, task.critic_layout.size :])["actor.gate"][:, 0]
    for agent in range(group.size):
        product = squares = errors = count = 0.0
        for moment in held_out:
            expected, rewards = predicted(state, agent, moment)
            assert expected.linear is not None
            output, error = expected.learned[0, 0].double().numpy(), rewards - expected.linear[0, 0].double().numpy()
            known = ~np.isnan(rewards[:, 0])
            output, error = (values[known] - values[known].mean(axis=0) for values in (output, error))
            product, squares = product + (output * error).sum(), squares + (output**2).sum()
            errors, count = errors + (error**2).sum(), count + error.size
        slope, repeated = product / squares, state.config.trading.holding_bars * 3
        variance = repeated * errors / count / squares
        wanted = slope - variance / slope if slope > least * variance**0.5 else 0.0
        assert float(gates[agent]) == pytest.approx(min(max(wanted, 0.0), 1.0), rel=1e-3, abs=1e-5)


def learned_once(state: TrainingState, generation: int) -> None:
    plan = state.learner.plan(state.replay, state.population.size, generation)
    assert plan is not None
    state.population = state.learner.learn(state.population, plan, state.replay, lambda: None).group


def test_agents_act_by_the_average_of_the_weights_after_each_step() -> None:
    learner = {"gradient_steps": 1, "ema_decay": 0.0}
    last, averaged = begun(learner=learner), begun(learner=learner | {"ema_decay": 0.9})
    wanted, learned = last.population.weights.double(), market_of(last).critic_layout.size
    learned += market_of(last).actor_layout.learned
    for generation in (1, 2, 3):
        learned_once(last, generation)
        learned_once(averaged, generation)
        wanted = 0.9 * wanted + 0.1 * last.population.weights
    own = averaged.population.weights[:, :learned].double().numpy()
    np.testing.assert_allclose(own, wanted[:, :learned].numpy(), rtol=1e-5, atol=1e-7)
    assert not np.allclose(own, last.population.weights[:, :learned].numpy(), rtol=1e-3, atol=1e-5)


def test_the_reserve_price_of_averaged_weights_is_exact_on_days_held_out() -> None:
    state = begun(learner={"ema_decay": 0.9})
    learned_once(state, 1)
    task = market_of(state)
    actor = task.actor_layout.views(state.population.weights[:, task.critic_layout.size :])
    for agent in range(state.population.size):
        best = []
        for moment in moments_held_out(state):
            expected, rewards = predicted(state, agent, moment)
            best.append(expected.rewards[0, 0].amax(-1).double().numpy()[~np.isnan(rewards[:, 0])])
        found = np.concatenate(best)
        assert float(actor["actor.log_spread"][agent, 0].exp()) == pytest.approx(found.std(), rel=1e-4)
        assert float(actor["actor.mean"][agent, 0]) == pytest.approx(found.mean() / found.std(), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("known", [True, False])
def test_the_gate_opens_to_a_network_that_knows_more_and_stays_shut_to_noise(known: bool) -> None:
    config = Config(
        preset="quickstart",
        device="cpu",
        market={"window": 2},
        network={"linear_scales": [1], "linear_degree": 1},
        population={"size": 4},
        evolution={"enabled": False},
    )
    panel = market_for_networks(config)
    if not known:
        noise = np.random.default_rng(2).standard_normal(panel.features.shape)
        panel = replace(panel, features=noise.astype(np.float32))
    state = advance(start_training(config, panel), 3)
    gates = [record.learning["gate"] for record in state.history if record.learning is not None]
    assert gates[0] == 0.0
    assert gates[-1] > 0.9 if known else gates[-1] < 0.2


@pytest.mark.parametrize("degree", [1, 2])
def test_agents_begin_with_products_of_features_where_these_know_more(degree: int) -> None:
    network = {"linear_scales": [1, 5], "linear_degree": degree}
    config = Config(preset="ddpg", device="cpu", market={"window": 60}, network=network)
    state = start_training(config, market_for_networks(config))
    panel = market_of(state).panel
    scores = agent_scores(state, state.population.weights[0])
    known = information_coefficient(scores, panel, config.trading, panel.splits.validation)
    assert known is not None
    assert known > 0.5 if degree == 2 else abs(known) < 0.2


def test_too_few_days_beside_those_held_out_are_refused() -> None:
    with pytest.raises(InputError, match=r"batch_size 170 needs as many .* network\.linear_scales does not hold out"):
        begun(260, learner={"batch_size": 170})


def test_a_backtest_knows_with_which_agents_the_run_began() -> None:
    """Their linear part is a regression on the training days, not stored weights."""
    state = begun()
    backtest = backtest_class(state.config)(state.config, market_of(state).panel, state.device)
    played = backtest.play(state.initial_weights(), range(236, 255), "initial", draws=20)
    np.testing.assert_allclose(played.baselines["initial_population"].equity, played.curve.equity, rtol=1e-12)
    assert float(np.ptp(played.curve.equity)) > 0.0
