"""The phases of a generation: what they read and commit, what depends on what; one that failed is called again.

At the end products in bfloat16: which numbers are rounded, and how near a generation stays.
"""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from known import known
from numpy.typing import NDArray
from record_cases import telemetry
from science_cases import LEARNERS_OF_ANY_TASK, random_panel, small_config
from training_cases import advance, begun, content_of, market_of, small_state

import eigen_core.generation.phases
import eigen_core.learning.base_learners
import eigen_core.learning.genetic
from eigen_core.common.errors import InputError
from eigen_core.common.progress import progress_to
from eigen_core.common.randomness import keyed_generator
from eigen_core.generation import TrainingState, evaluate, evolve, record_telemetry, snapshot, start_training, train
from eigen_core.generation.phases import training_slices
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.layout import product
from eigen_core.networks.tcn import TcnEncoder
from eigen_core.reporting import training_frame
from eigen_core.task.market import MarketTask
from eigen_core.task.replay import Replay
from eigen_core.task.transitions import stored_days
from eigen_core.trading.environment import TradingEnvironment


def weights_of(state: TrainingState) -> torch.Tensor:
    return state.population.weights.clone()


def test_the_seed_decides_a_run_and_no_global_generator_does() -> None:
    first, other = (content_of(advance(small_state(seed=seed), 3)) for seed in (3, 4))
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(99)
        before = torch.random.get_rng_state()
        assert content_of(advance(small_state(seed=3), 3)) == first
        assert torch.equal(torch.random.get_rng_state(), before)
    for name in ("population", "replay", "champion"):
        assert first[name] != other[name]


def test_a_history_says_what_happened() -> None:
    state = small_state(exploration={"scale": 0.2, "decay": 0.99, "minimum": 0.15}, replay={"minimum": 171})
    noise = 0.2
    for generation in range(1, 5):
        result = evaluate(state)
        assert state.noise_scale == noise
        statistics = train(state)
        record = evolve(state)
        assert state.history[-1] == record
        assert record.generation == state.generation == generation == len(state.history)
        assert record.fitness == tuple(result.fitness.tolist())
        assert record.validations == tuple(result.validations.tolist())
        assert record.learning == statistics
        assert (statistics is None) == (generation == 1)
        assert record.transitions == min(120 * generation, 400)
        assert record.noise_scale == noise
        noise = max(0.15, noise * 0.99 ** (2 * 12))
        assert record.trading == result.statistics
    hashes = [record.weights_sha256 for record in state.history]
    assert len(set(hashes)) == 4
    assert len({record.replay_sha256 for record in state.history}) == 4
    learning = known(state.history[-1].learning)
    assert learning["gradient_steps"] == 3


@pytest.mark.parametrize("shared", [True, False])
def test_training_slices_are_inside_the_training_days_and_new_in_each_generation(shared: bool) -> None:
    state = small_state(evaluation={"slices": 3, "shared_slices": shared})
    drawn = []
    for _ in range(3):
        slices = training_slices(state)
        assert slices.shape == (5, 3)
        assert (slices >= 7).all()
        assert (slices + 17 <= market_of(state).panel.splits.train.stop).all()
        assert (slices == slices[0]).all() == shared
        assert (training_slices(state) == slices).all()
        drawn.append(slices.tolist())
        advance(state, 1)
    assert len({str(slices) for slices in drawn}) == 3


def test_replayed_transitions_are_those_of_the_training_episodes() -> None:
    state = small_state(population={"group_size": 2}, evaluation={"shared_slices": False})
    slices = training_slices(state)
    evaluate(state)
    expected = [first_day + step for first_day in slices.flatten().tolist() for step in range(12)]
    assert stored_days(state.replay).tolist() == expected
    rewards = state.replay.tensors()["reward"].double().reshape(5, 2, 12).sum(dim=2).cpu()
    np.testing.assert_allclose(rewards.amin(dim=1), known(state.evaluated).fitness, rtol=1e-6, atol=1e-3)


OFF_POLICY = sorted(set(LEARNERS_OF_ANY_TASK) - {"ppo"})
ENDLESS: dict[str, Any] = {
    "task": "gym:uneven_environment:EndlessEnvironment",
    "environment": {"episode_steps": 9},
    "exploration": {"random_steps": 91},
}
RANDOM: dict[str, Any] = {"exploration": {"random_steps": 171}}
PORTFOLIO: dict[str, Any] = {**RANDOM, "task": "portfolio", "portfolio": {"initial_speed": 0.1}}


def drawn(state: TrainingState, generation: int) -> NDArray[np.float64]:
    shape = state.task.noise_shape(state.config.evaluation.slices)
    generators = [
        keyed_generator(state.config.seed, generation, "evaluate", agent, "random actions") for agent in range(5)
    ]
    return np.concatenate([generator.uniform(-1.0, 1.0, shape) for generator in generators])


@pytest.mark.parametrize("algorithm", OFF_POLICY)
@pytest.mark.parametrize("sections", [ENDLESS, RANDOM, PORTFOLIO], ids=["gym", "market", "portfolio"])
def test_as_many_generations_as_it_takes_are_played_at_random(sections: dict[str, Any], algorithm: str) -> None:
    state = begun(small_config(**sections, learner={"algorithm": algorithm}))
    for generation in range(1, 4):
        before = state.replay.written
        result = evaluate(state)
        rows = torch.arange(before, state.replay.written) % state.replay.capacity
        stored = state.replay.pick(rows, "action")["action"]
        actions = (state.task.box.actions(stored) if algorithm == "sac" else stored).double().cpu().numpy()
        low, high = (bound.double().cpu().numpy() for bound in (state.task.box.low, state.task.box.high))
        expected = low + (high - low) * (1.0 + drawn(state, generation)) / 2.0
        plays_at_random = generation <= 2
        assert np.allclose(actions, expected.reshape(actions.shape), atol=1e-5) == plays_at_random
        assert (result.fitness.tolist() == result.validations.tolist()) == plays_at_random
        train(state)
        evolve(state)


def test_until_the_minimum_is_reached_only_evolution_changes_weights() -> None:
    state = small_state(replay={"minimum": 341})
    for generation in range(1, 4):
        evaluate(state)
        before = state.population
        statistics = train(state)
        if generation < 3:
            assert statistics is None
            assert state.population is before
        else:
            assert statistics is not None
            assert (state.population.weights != before.weights).any(dim=1).all()
        record = evolve(state)
        assert record.learning == statistics
        elites = [one for one in record.descent if one.origin == "elite"]
        assert elites
        if generation < 3:
            for one in elites:
                assert torch.equal(state.population.weights[one.agent], before.weights[one.parents[0]])


@pytest.mark.parametrize("sections", [{"learner": {"gradient_steps": 0}}, {"replay": {"minimum": 400}}])
def test_without_learning_and_breeding_weights_never_change(sections: dict[str, Any]) -> None:
    state = small_state(evolution={"enabled": False}, **sections)
    before = weights_of(state)
    advance(state, 2)
    assert torch.equal(state.population.weights, before)
    assert [record.learning for record in state.history] == [None, None]


def test_gradients_alone() -> None:
    state = small_state(evolution={"enabled": False})
    evaluate(state)
    before = weights_of(state)
    train(state)
    learned = {name: tensor.clone() for name, tensor in state.population.tensors().items()}
    assert not torch.equal(learned["weights"], before)
    record = evolve(state)
    for name, tensor in learned.items():
        assert torch.equal(state.population.tensors()[name], tensor)
    assert [(one.agent, one.origin, one.parents) for one in record.descent] == [
        (agent, "elite", (agent,)) for agent in range(5)
    ]
    advance(state, 1)
    assert state.population.state["critic_steps"].tolist() == [6] * 5


def test_learning_goes_on_where_elites_left_and_starts_anew_with_children() -> None:
    state = advance(small_state(), 1)
    origins = [one.origin for one in state.history[-1].descent]
    assert state.population.state["critic_steps"].tolist() == [3 if origin == "elite" else 0 for origin in origins]
    evaluate(state)
    train(state)
    assert state.population.state["critic_steps"].tolist() == [6 if origin == "elite" else 3 for origin in origins]


def test_where_no_block_has_enough_different_days_nothing_is_learned() -> None:
    state = small_state(
        network={"encoder": "tcn"}, learner={"block_bars": 31, "batch_size": 30}, evaluation={"slices": 1}
    )
    before = weights_of(state)
    evaluate(state)
    assert train(state) is None
    assert torch.equal(state.population.weights, before)


def test_a_snapshot_is_taken_between_generations_only() -> None:
    state = small_state()
    for phase in (None, evaluate, train, evolve, evaluate):
        if phase is not None:
            phase(state)
        if phase is evolve:
            assert snapshot(state).generation == 1
        else:
            with pytest.raises(RuntimeError, match="only between two generations"):
                snapshot(state)


PPO: dict[str, Any] = {"learner": {"algorithm": "ppo"}}
BOUNDLESS: dict[str, Any] = {"trading": {"max_coefficient": None}}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"replay": {"capacity": 119}}, r"replay\.capacity 119 is below the 120 transitions"),
    ({"learner": {"batch_size": 99}}, r"learner\.batch_size 99 .* there are 98"),
    ({"network": {"encoder": "tcn"}, "learner": {"block_bars": 7}}, r"learner\.block_bars 7 must be 8 or more"),
    # A fitness that compares no generations is no part of a score.
    ({"evaluation": {"champion_validation_share": 0.5}}, r"set evaluation\.fitness_slices"),
    ({"market": {"window": 110}}, "window 110 needs at least 181 bars"),
    ({**RANDOM, **PPO}, r"exploration\.random_steps 171: PPO learns from what its own policy played"),
    ({**RANDOM, **BOUNDLESS}, r"trading\.max_coefficient is empty, no bound: give a bound"),
    ({"replay": {"actions": "float16"}, **BOUNDLESS}, r"replay\.actions float16 .* trading\.max_coefficient is empty"),
]


@pytest.mark.parametrize(("sections", "message"), IMPOSSIBLE)
def test_what_no_run_can_train_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        small_state(**sections)


def test_what_just_fits_is_taken() -> None:
    for sections in (
        {"replay": {"capacity": 120}},
        {"network": {"encoder": "tcn"}, "learner": {"block_bars": 8}},
        {"network": {"encoder": "tcn"}, "learner": {"block_bars": 0}},
    ):
        assert advance(small_state(**sections), 2).history[-1].learning is not None


def test_telemetry_is_kept_once_a_generation_and_shown_beside_the_history() -> None:
    state = advance(small_state(), 2)
    assert len(training_frame(state)) == 2
    for generation, seconds in ((1, 1.0), (2, 2.0), (2, 3.0)):
        record_telemetry(state, telemetry(generation).model_copy(update={"evaluate_seconds": seconds}))
    assert [(one.generation, one.evaluate_seconds) for one in state.telemetry] == [(1, 1.0), (2, 3.0)]
    frame = training_frame(state)
    assert frame["best_fitness"].tolist() == [record.best_fitness for record in state.history]
    assert frame["seconds"].tolist() == [one.seconds for one in state.telemetry]


def test_a_state_that_nothing_needs_any_more_is_freed_at_once_with_what_it_holds() -> None:
    """Memory of a GPU that waited for Python's search of cycles would be missing until then."""
    state = advance(small_state(), 1)
    gc.collect()
    gc.disable()
    try:
        kept = [weakref.ref(held) for held in (state, state.task, state.replay, state.population.weights)]
        del state
        assert [held() for held in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_what_comes_after_the_training_days_is_not_learned_from() -> None:
    config = small_config(evolution={"enabled": False})
    panel = random_panel(config)
    stop = panel.splits.train.stop
    features, close = panel.features.copy(), panel.close.copy()
    features[stop:] += 1.0
    close[stop:] *= 1.1
    for encoder in ("filter_bank", "tcn"):
        config = small_config(evolution={"enabled": False}, network={"encoder": encoder})
        one, other = (
            advance(start_training(config, market), 2)
            for market in (panel, replace(panel, features=features, close=close))
        )
        assert one.history[-1].validations != other.history[-1].validations
        assert one.history[-1].weights_sha256 == other.history[-1].weights_sha256
        assert one.history[-1].replay_sha256 == other.history[-1].replay_sha256


Phase = Callable[[TrainingState], object]

TINY: dict[str, Any] = {
    "trading": {"trading_bars": 4, "settlement_bars": 3, "holding_bars": 3},
    "network": {"encoder": "tcn", "column_chunk": 3},
    "population": {"size": 3, "group_size": 2},
    "learner": {"gradient_steps": 2, "batch_size": 4, "accumulation_steps": 2, "policy_delay": 2},
    "replay": {"capacity": 100, "minimum": 20},
    "evaluation": {"slices": 2, "lowest": 1, "validation_slices": 1, "validation_lowest": 1},
}


class BrokenError(Exception):
    """A phase fails with it where a test asks for that."""


class Fuse:
    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.calls = 0

    def burn(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise BrokenError

    def update(self, name: str, done: int, total: int) -> None:
        assert name
        assert 0 < done <= total
        self.burn()


@contextmanager
def fused(place: tuple[object, str] | None, fuse: Fuse) -> Iterator[None]:
    """Let every call of a function, or without one every report of progress, burn at `fuse` first."""
    if place is None:
        with progress_to(fuse):
            yield
        return
    owner, name = place
    original = getattr(owner, name)

    def burning(*arguments: Any, **named: Any) -> Any:
        fuse.burn()
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, burning)
        yield


phases, steps = eigen_core.generation.phases, eigen_core.learning.base_learners
genetic = eigen_core.learning.genetic

# Where a phase can fail: in its reports of progress, or in the calls of a function.
PLACES: dict[str, tuple[Phase, tuple[object, str] | None]] = {
    "evaluate, progress": (evaluate, None),
    "evaluate, environment": (evaluate, (TradingEnvironment, "step")),
    "evaluate, encoder": (evaluate, (TcnEncoder, "encode_block")),
    "evaluate, actor": (evaluate, (AgentNetwork, "policy")),
    "evaluate, noise": (evaluate, (phases, "keyed_generator")),
    "evaluate, fitness": (evaluate, (phases, "fitness_and_scores")),
    "evaluate, statistics": (evaluate, (MarketTask, "statistics")),
    "evaluate, champion": (evaluate, (phases, "_champion_after")),
    "evaluate, append": (evaluate, (Replay, "append")),
    "train, progress": (train, None),
    "train, encoder": (train, (TcnEncoder, "encode_days")),
    "train, values": (train, (AgentNetwork, "values")),
    "train, pick": (train, (Replay, "pick")),
    "train, adam": (train, (steps, "adam_update")),
    "train, clip": (train, (steps, "clip_rows")),
    "train, draws": (train, (steps, "keyed_generator")),
    "train, statistics": (train, (phases, "_means")),
    "evolve, breed": (evolve, (genetic.GeneticMethod, "breed")),
    "evolve, draws": (evolve, (genetic, "keyed_generator")),
    "evolve, hash": (evolve, (phases, "tensors_sha256")),
    "evolve, record": (evolve, (phases, "GenerationRecord")),
}

# Places that a phase reaches so often that it fails at some of its calls.
STRIDES = {"evaluate, environment": 4, "train, encoder": 7, "train, values": 5, "train, pick": 7}
STRIDES |= {"train, adam": 4, "train, clip": 4, "train, draws": 4, "evaluate, encoder": 4}

ORDER: tuple[Phase, ...] = (evaluate, train, evolve)


def state_before(phase: Phase, generations: int) -> TrainingState:
    state = advance(small_state(**TINY), generations)
    for earlier in ORDER[: ORDER.index(phase)]:
        earlier(state)
    return state


def complete(state: TrainingState, phase: Phase) -> dict[str, Any]:
    for later in ORDER[ORDER.index(phase) :]:
        later(state)
    return content_of(state)


def comparable(returned: object) -> object:
    if returned is None or isinstance(returned, dict):
        return returned
    return {name: str(value) for name, value in vars(returned).items()}


@pytest.mark.parametrize("place", PLACES)
def test_a_phase_that_failed_anywhere_is_made_good_by_calling_it_again(place: str) -> None:
    """In the generation that fills the ring of the replay and begins it anew."""
    phase, where = PLACES[place]
    prepared = state_before(phase, 2)
    untouched, undisturbed, counting = content_of(prepared), copy.deepcopy(prepared), Fuse()
    with fused(where, counting):
        expected = phase(undisturbed)
    expected_content = content_of(undisturbed)
    assert counting.calls > 0
    for fails_at in range(1, counting.calls + 1, STRIDES.get(place, 1)):
        state = copy.deepcopy(prepared)
        with fused(where, Fuse(fails_at)), pytest.raises(BrokenError):
            phase(state)
        assert content_of(state) == untouched
        assert comparable(phase(state)) == comparable(expected)
        assert content_of(state) == expected_content
        if fails_at == 1:
            assert complete(state, phase) == complete(copy.deepcopy(prepared), phase)


def test_a_phase_that_has_committed_does_nothing_when_called_again() -> None:
    state = small_state(**TINY)
    for _ in range(2):
        for phase in ORDER:
            returned = phase(state)
            content = content_of(state)
            weights = state.population.weights
            assert comparable(phase(state)) == comparable(returned)
            assert content_of(state) == content
            assert state.population.weights is weights


def test_phases_do_not_change_what_was_committed_before_them() -> None:
    """Whoever still holds the former population (a checkpoint being written) sees no phase at work on it."""
    state = state_before(train, 1)
    former = state.population
    before = {name: tensor.clone() for name, tensor in former.tensors().items()}
    train(state)
    evolve(state)
    assert state.population is not former
    for name, tensor in former.tensors().items():
        assert torch.equal(tensor, before[name])


def test_learning_that_diverges_leaves_the_state_as_it_was() -> None:
    state = small_state(**{**TINY, "learner": {**TINY["learner"], "critic_learning_rate": 1e9}})
    evaluate(state)
    before = content_of(state)
    with pytest.raises(FloatingPointError, match="learning diverged"):
        train(state)
    assert content_of(state) == before


def test_actions_that_diverge_leave_the_state_as_it_was() -> None:
    state = small_state()
    evaluate(state)
    state.population.weights.fill_(float("inf"))
    before = content_of(state)
    with pytest.raises(FloatingPointError, match="actions are not finite"):
        evolve(state)
    assert content_of(state) == before


def test_evolve_before_evaluate_is_refused() -> None:
    state = small_state(**TINY)
    before = content_of(state)
    with pytest.raises(RuntimeError, match="before evaluate"):
        evolve(state)
    assert content_of(state) == before


def trained(precision: str, encoder: str) -> dict[str, Any]:
    state = advance(small_state(20, network={"encoder": encoder, "precision": precision}, replay={"minimum": 1}), 1)
    assert {tensor.dtype for tensor in state.population.tensors().values()} == {torch.float32, torch.int64}
    return state.history[0].model_dump()


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_a_generation_is_near_that_in_float32_and_not_the_same(encoder: str) -> None:
    whole, half = (trained(precision, encoder) for precision in ("float32", "bfloat16"))
    assert half["weights_sha256"] != whole["weights_sha256"]
    assert half["learning"]["value"] == pytest.approx(whole["learning"]["value"], rel=0.1, abs=0.01)
    assert half["learning"]["critic_gradient_norm"] == pytest.approx(whole["learning"]["critic_gradient_norm"], rel=0.1)


def test_factors_are_rounded_and_sums_are_not() -> None:
    """1 + 2^-9 becomes 1; 512 times 1 / 3 in bfloat16 would stop growing long before its sum."""
    left, right = torch.full((1, 1, 512), 1.0 + 2.0**-9), torch.full((1, 512, 8), 0.333984375)
    found = product(left, right.bfloat16())
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [171.0] * 8
    assert product(left, right)[0, 0, 0].item() == pytest.approx(512 * (1.0 + 2.0**-9) * 0.333984375, rel=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_gradient_of_weights_is_float32_and_that_of_the_rounded_factors(precision: torch.dtype) -> None:
    rows = torch.linspace(-1.0, 1.0, 24).reshape(1, 6, 4)
    weights = torch.linspace(0.0, 1.0, 32).reshape(1, 4, 8).requires_grad_()
    torch.autograd.backward(product(rows, weights.to(precision)).sum())
    gradient = known(weights.grad)
    assert gradient.dtype == torch.float32
    expected = rows.to(precision).float().sum(1)[:, :, None].expand(1, 4, 8)
    assert torch.allclose(gradient, expected, rtol=0.01 if precision == torch.bfloat16 else 1e-6, atol=1e-6)
