"""Inner steps read nothing back from the device: a GPU would wait for that, and a graph of its work could not be kept.

On torch's `meta` device tensors have no values. What needs one raises: `item`, `tolist`, `cpu`, numpy, an `if` on a
tensor. So does an operation on tensors of two devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from stand_in_gpu import GPU, GpuTensor, stand_in_gpu, waits
from torch import Tensor
from torch.utils._pytree import tree_leaves
from training_cases import market_of, small_state

import eigen_core.evolution.cem
import eigen_core.evolution.pbt
import eigen_core.learners.ppo
import eigen_core.replay
import eigen_core.task.market_rollouts
import eigen_core.trading.environment
import eigen_core.trading.portfolio
import eigen_core.trading.whole_episodes
from eigen_core.config import Config, choices
from eigen_core.errors import InputError
from eigen_core.evolution import Champion, Ended
from eigen_core.generation import evaluate, start_training, train
from eigen_core.generation.groups import AgentComputer
from eigen_core.learners.interface import Learned
from eigen_core.population import Population
from eigen_core.replay import Replay
from eigen_core.task.market import MarketTask
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.trading import Prices
from eigen_core.trading.environment import check_first_days

pytestmark = pytest.mark.cpu  # whatever computes otherwise, here it is the meta device or the stand-in for a GPU

META = torch.device("meta")


def read_back(patch: pytest.MonkeyPatch) -> None:
    """Leave out all that is read back on purpose: this is the whole list, each with the reason."""
    for module in (eigen_core.trading.environment, eigen_core.trading.whole_episodes):
        # Once a rollout: what the episodes came to, and that it is finite.
        patch.setattr(module, "account", lambda *_: "the account")
    # Once a rollout: fitness is computed on the host.
    patch.setattr(eigen_core.task.market_rollouts, "_totals", lambda *_: None)
    # Once a run: the days on which some position stays as it is.
    patch.setattr(eigen_core.trading.portfolio, "_halted", lambda stays: np.zeros(len(stays), dtype=bool))
    # Once a run or a resume: days of transitions that batches are drawn by.
    patch.setattr(eigen_core.replay, "_on_host", lambda column, _: torch.zeros(column.shape, dtype=column.dtype))
    # Once a generation: facts of the method, and genes before and after they are copied.
    patch.setattr(eigen_core.evolution.cem, "_mean_deviation", lambda _: 1.0)
    patch.setattr(
        eigen_core.evolution.pbt, "_genes", lambda agents: {name: [0.5] * agents.size for name in agents.genes}
    )
    # Once a train phase: the curves.
    patch.setattr(Learned, "of", classmethod(lambda cls, group, *_: cls(group, {})))


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
    assert rollout.summary == "the account"
    assert rollout.episodes.actions.device == META


def test_days_of_whole_episodes_do_not_wait() -> None:
    def waits_with(trading_days: int) -> int:
        found = list[bool]()
        trading = {"observe_portfolio": False, "trading_days": trading_days}
        with stand_in_gpu(lambda operator, args, _, result: found.append(waits(operator, args, result))):
            state = small_state(device="cuda", threads=1, trading=trading)
            found.clear()
            evaluate(state)
        return sum(found)

    assert waits_with(15) == waits_with(10)


def test_first_days_are_checked_where_they_are() -> None:
    found = list[bool]()
    with stand_in_gpu(lambda operator, args, _, result: found.append(waits(operator, args, result))):
        config = small_config(device="cuda")
        prices = Prices.of_panel(random_panel(config), torch.device("cuda"))
        for device, reads in (("cpu", 0), ("cuda", 2)):
            first_days = torch.tensor([70, 75], device=device)
            found.clear()
            checked = check_first_days(prices, config.trading, first_days)
            assert sum(found) == reads
            assert (checked.device, checked.tolist()) == (GPU, [70, 75])
            with pytest.raises(InputError, match="choose a first day from 0 to"):
                check_first_days(prices, config.trading, first_days - 71)


@pytest.mark.parametrize("learner", ["ddpg", "td3", "sac", "counterfactual"])
def test_a_train_phase_sends_as_often_however_many_its_gradient_steps(learner: str) -> None:
    def sent_with(gradient_steps: int) -> int:
        found = list[bool]()
        with stand_in_gpu(lambda _, args, __, result: found.append(is_sent(args, result))):
            of_learner = {"algorithm": learner, "gradient_steps": gradient_steps}
            state = small_state(device="cuda", threads=1, learner=of_learner, replay={"minimum": 1})
            evaluate(state)
            found.clear()
            train(state)
        return sum(found)

    assert sent_with(4) == sent_with(2) > 0


def is_sent(args: tuple[Any, ...], result: Any) -> bool:
    """An array of the host comes to the device."""
    from_host = any(
        isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor) and leaf.dim() for leaf in tree_leaves(args)
    )
    return from_host and isinstance(result, GpuTensor)


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


@pytest.mark.parametrize("learner", [name for name in choices.LEARNERS if name != "ppo"])
def test_gradient_steps_read_nothing_back(learner: str) -> None:
    config = small_config(learner={"algorithm": learner, "gradient_steps": 2, "accumulation_steps": 2})
    assert learned_on_meta(config).weights.device == META


def test_a_step_of_ppo_reads_back_alone_who_goes_on() -> None:
    """Each agent stops by itself when its policy has moved too far, so one value of each is read in every step."""
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor") as raised:
        learned_on_meta(small_config(learner={"algorithm": "ppo"}))
    assert "divergence.tolist()" in str([str(entry.statement) for entry in raised.traceback][-1])


@pytest.mark.parametrize("method", list(choices.METHODS))
def test_breeding_reads_nothing_back(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_back(monkeypatch)
    population = {"size": 10, "group_size": 5}
    config = small_config(population=population, evolution={"method": method, "sync_generations": 1})
    real = start_training(config, random_panel(config))

    def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(META) for name, tensor in tensors.items()}

    tensors = moved(real.population.tensors())
    ended = Ended(
        generation=1,
        population=Population(tensors.pop("weights"), tensors),
        fitness=np.arange(10.0),
        learned=True,
        champion=Champion(real.population.weights[0].to(META), 0.0, 0.0, 1, 0),
        state=replace(real.method_state, tensors=moved(real.method_state.tensors)),
    )
    assert real.method.breed(ended).population.weights.device == META


def test_a_portfolio_grows_without_reading_anything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    read_back(monkeypatch)
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
