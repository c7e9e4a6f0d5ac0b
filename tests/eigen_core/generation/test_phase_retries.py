"""A phase that fails anywhere leaves the state as it was, and called again leaves what it would have left."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from training_cases import advance, content_of, small_state

import eigen_core.generation.phases
import eigen_core.learning.base_learners
import eigen_core.learning.genetic
from eigen_core.common.progress import progress_to
from eigen_core.generation import TrainingState, evaluate, evolve, train
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.tcn import TcnEncoder
from eigen_core.task.market import MarketTask
from eigen_core.task.replay import Replay
from eigen_core.trading.environment import TradingEnvironment

Phase = Callable[[TrainingState], object]

TINY: dict[str, Any] = {
    "trading": {"trading_days": 4, "settlement_days": 3, "holding_days": 3},
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
STRIDES = {"evaluate, environment": 2, "train, encoder": 6, "train, values": 4, "train, pick": 6}

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
