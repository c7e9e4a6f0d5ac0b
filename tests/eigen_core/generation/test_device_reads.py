"""Inner steps read nothing back from the device: a GPU would wait for that, and a graph of its work could not be kept.

On torch's `meta` device tensors have no values. What needs one raises: `item`, `tolist`, `cpu`, numpy, an `if` on a
tensor. So does an operation on tensors of two devices. What whole phases read is in `test_phase_reads.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import learner_with, method_with, random_panel, small_config
from torch import Tensor
from training_cases import market_of

import eigen_core.learning.cem
import eigen_core.learning.pbt
import eigen_core.learning.ppo
import eigen_core.task.market
import eigen_core.task.replay
import eigen_core.trading.episodes
import eigen_core.trading.portfolio
import eigen_core.trading.prices
from eigen_core.config import Config, values
from eigen_core.generation import evaluate, start_training
from eigen_core.generation.agents import AgentComputer
from eigen_core.learning import Champion, GenerationResult
from eigen_core.learning.interface import LearningResult
from eigen_core.networks.population import Population
from eigen_core.task.market import MarketTask
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.task.replay import Replay

pytestmark = pytest.mark.cpu  # whatever computes otherwise, here it is the meta device

META = torch.device("meta")


def read_back(patch: pytest.MonkeyPatch) -> None:
    """Leave out what is read back on purpose; `READS` of `test_phase_reads.py` has the reasons of what phases read."""
    patch.setattr(eigen_core.trading.episodes, "_require_finite", lambda *_: None)
    patch.setattr(eigen_core.task.market, "_totals", lambda *_: None)
    patch.setattr(eigen_core.learning.cem, "_mean_deviation", lambda _: 1.0)
    patch.setattr(
        eigen_core.learning.pbt, "_genes", lambda agents: {name: [0.5] * agents.size for name in agents.genes}
    )
    patch.setattr(LearningResult, "of", classmethod(lambda cls, group, *_: cls(group, {})))
    # Once a run: prices, of which the fills are computed, and the days on which some position stays as it is.
    patch.setattr(eigen_core.trading.prices, "_on_host", lambda held: torch.zeros(held.shape, dtype=held.dtype))
    patch.setattr(eigen_core.trading.portfolio, "_halted", lambda stays: np.zeros(len(stays), dtype=bool))
    # Once a run or a resume: days of transitions that batches are drawn by.
    patch.setattr(eigen_core.task.replay, "_on_host", lambda column, _: torch.zeros(column.shape, dtype=column.dtype))


def on_meta(config: Config) -> tuple[AgentComputer, Tensor]:
    computer = AgentComputer(config, random_panel(config), META)
    parameters = computer.task.critic_layout.size + computer.task.actor_layout.size
    return computer, torch.empty((3, parameters), device=META)


@pytest.mark.parametrize("credit", ["decision", "realized", "marked"])
@pytest.mark.parametrize("fill", ["next_open", "same_close"])
@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.parametrize("observe", [True, False])
def test_a_rollout_of_the_market_reads_nothing_back_between_its_steps(
    observe: bool, encoder: str, fill: str, credit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_back(monkeypatch)
    trading = {"observe_portfolio": observe, "fill": fill, "credit": credit}
    computer, weights = on_meta(small_config(trading=trading, network={"encoder": encoder}))
    noise = torch.empty((3, *computer.task.noise_shape(2)), device=META)
    assert isinstance(computer.task, MarketTask)
    rollout: Any = computer.task.evaluator.roll_out(weights, np.array([[70, 75]] * 3), noise, record=True)
    assert rollout.summary.gain.device == META
    assert rollout.episodes.actions.device == META


def learned_on_meta(config: Config) -> Population:
    """What agents become that learn from what others have played."""
    real = start_training(config, random_panel(config))
    evaluate(real)
    plan = real.learner.plan(real.replay, real.population.size, 1)
    assert plan is not None
    with pytest.MonkeyPatch.context() as patch:
        read_back(patch)
        computer = AgentComputer(config, random_panel(config), META)
    computer.task.state = {name: tensor.to(META) for name, tensor in real.task_state.items()}
    agents = computer.learner.new_agents(real.population.weights.to(META))
    # Once a train phase: how many steps each agent has taken, which the learners count on the host.
    state = {
        name: torch.zeros(held.shape, dtype=held.dtype) if held.dtype == torch.int64 else held
        for name, held in agents.state.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        read_back(patch)
        replay = Replay(config.replay.capacity, computer.task.columns, META)
        replay.written = real.replay.written
        return computer.learner.learn(Population(agents.weights, state), plan, replay, lambda: None).group


@pytest.mark.parametrize("learner", [name for name in values.LEARNERS if name != "ppo"])
def test_gradient_steps_read_nothing_back(learner: str) -> None:
    config = small_config(learner=learner_with(learner, gradient_steps=2, accumulation_steps=2))
    assert learned_on_meta(config).weights.device == META


def test_a_step_of_ppo_reads_back_alone_who_goes_on() -> None:
    """Each agent stops by itself when its policy has moved too far, so one value of each is read in every step."""
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor") as raised:
        learned_on_meta(small_config(learner={"algorithm": "ppo"}))
    assert "divergence.tolist()" in str([str(entry.statement) for entry in raised.traceback][-1])


@pytest.mark.parametrize("method", list(values.METHODS))
def test_breeding_reads_nothing_back(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_back(monkeypatch)
    population = {"size": 10, "group_size": 5}
    config = small_config(population=population, evolution=method_with(method, sync_generations=1))
    real = start_training(config, random_panel(config))

    def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(META) for name, tensor in tensors.items()}

    tensors = moved(real.population.tensors())
    ended = GenerationResult(
        generation=1,
        population=Population(tensors.pop("weights"), tensors),
        fitness=np.arange(10.0),
        learned=True,
        champion=Champion(real.population.weights[0].to(META), 0.0, 0.0, 1, 0),
        state=replace(real.method_state, tensors=moved(real.method_state.tensors)),
    )
    assert real.method.breed(ended).population.weights.device == META


@pytest.mark.parametrize("halted", [False, True])
def test_a_portfolio_grows_without_reading_anything_back(halted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read_back(monkeypatch)
    monkeypatch.setattr(eigen_core.trading.portfolio, "_halted", lambda stays: np.full(len(stays), halted))
    computer, weights = on_meta(small_config(learner={"algorithm": "direct"}))
    assert isinstance(computer.task, PortfolioTask)
    growth, turnover = computer.task.growth(weights, 60, 8)
    assert growth.device == turnover.device == META


@pytest.mark.parametrize(
    "read",
    [
        lambda values: values[0].item(),
        lambda values: values.tolist(),
        lambda values: values.cpu(),
        lambda values: values.numpy(),
        lambda values: 1 if values[0] > 0.0 else 0,
        lambda values: values + torch.zeros(3),
    ],
    ids=["item", "tolist", "cpu", "numpy", "if", "two devices"],
)
def test_each_of_these_would_be_seen(read: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    network: Any = market_of(start_training(small_config(), random_panel(small_config()))).network
    policy = type(network).policy

    def reading(self: object, *arguments: Any) -> object:
        read(torch.empty(3, device=META))
        return policy(self, *arguments)

    monkeypatch.setattr(type(network), "policy", reading)
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        learned_on_meta(small_config())
