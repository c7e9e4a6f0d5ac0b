"""A population of 16 agents compared with 16 agents of Stable-Baselines3."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from torch import nn

from benchmarks.measure import Times
from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import ActorCriticConfig, Config, OffPolicyConfig, PpoConfig
from eigen_core.generation import start_training
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.population import agent_groups
from eigen_core.task import open_data
from eigen_core.task.gymnasium_environment import open_environment

_AGENTS = 16
_ROUNDS, _WARM_UPS = 5, 1
_EPOCHS = 10
_OURS, _OURS_GROUPED, _THEIRS = "Eigen", "Eigen, groups of 1", "Stable-Baselines3"
_WALL, _CPU = "wall", "CPU"
_CLOCKS = {_WALL: time.perf_counter, _CPU: time.process_time}


@dataclass
class Stopwatch:
    """Adds up the seconds of a round by each clock: in `total`, and in `playing` those of the environments."""

    total: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CLOCKS, 0.0))
    playing: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CLOCKS, 0.0))

    @contextmanager
    def of(self, seconds: dict[str, float], sign: float = 1.0) -> Iterator[None]:
        started = {name: clock() for name, clock in _CLOCKS.items()}
        yield
        for name, clock in _CLOCKS.items():
            seconds[name] += sign * (clock() - started[name])


class _Population:
    """All agents in one bank; their episodes are played together."""

    def __init__(self, config: Config) -> None:
        self._state = start_training(config, open_data(config).content)
        self._generation = 0

    def round(self, watch: Stopwatch) -> None:
        state, size = self._state, self._state.config.population.size
        self._generation += 1
        generator = keyed_generator(1, self._generation, "benchmarks", "baselines")
        groups = agent_groups(size, state.group_size)
        with watch.of(watch.playing):
            for agents in groups:
                weights = state.population.weights[agents]
                shape = (len(weights), *state.task.noise_shape(1))
                noise = torch.tensor(generator.standard_normal(shape, dtype=np.float32))
                if state.heads.spread == "none":
                    noise.mul_(state.config.exploration.scale)
                starts: NDArray[np.int64] = generator.integers(0, 1 << 20, (len(weights), 1))
                played = state.task.roll_out(weights, starts, noise, record=True)
                assert played.transitions is not None
                state.replay.append(played.transitions)
        plan = state.learner.plan(state.replay, size, self._generation)
        assert plan is not None
        for agents in groups:
            learned = state.learner.learn(state.population.rows(agents), plan.rows(agents), state.replay, lambda: None)
            state.population.put(agents, learned.group)


class _StableBaselines:
    """Models of Stable-Baselines3 with their defaults except networks, batches, rollouts, rates and noise."""

    def __init__(self, config: Config) -> None:
        opened, network = open_environment(config), config.network
        learner = learner_settings(config, ActorCriticConfig)
        settings: dict[str, Any] = {
            "batch_size": learner.batch_size,
            "gamma": learner.gamma,
            "learning_rate": learner.actor_learning_rate,
            "policy_kwargs": {"net_arch": [network.head_width] * network.head_layers, "activation_fn": nn.ReLU},
            "device": "cpu",
        }
        if isinstance(learner, PpoConfig):
            settings |= {"n_steps": opened.spec.episode_steps, "n_epochs": learner.epochs}
        else:
            tau = learner_settings(config, OffPolicyConfig).tau
            settings |= {"learning_starts": 0, "buffer_size": config.replay.capacity, "tau": tau}
        if learner.algorithm == "td3":
            deviation = np.full(len(opened.low), 2.0 * config.exploration.scale)
            settings |= {"action_noise": NormalActionNoise(np.zeros_like(deviation), deviation), "train_freq": 1}
        kind: Any = {"td3": TD3, "sac": SAC, "ppo": PPO}[learner.algorithm]
        self._models = [kind("MlpPolicy", opened.make(), **settings) for _ in range(_AGENTS)]
        self._steps = opened.spec.episode_steps
        self._train = [model.train for model in self._models]

    def round(self, watch: Stopwatch) -> None:
        for model, train in zip(self._models, self._train, strict=True):

            def outside(*args: Any, train: Callable[..., None] = train, **named: Any) -> None:  # noqa: ANN401
                with watch.of(watch.playing, -1.0):
                    train(*args, **named)

            model.train = outside
            with watch.of(watch.playing):
                model.learn(self._steps, reset_num_timesteps=False, log_interval=1_000_000)


@dataclass(frozen=True)
class _Case:
    """Agents of an environment with two hidden layers of `width`, batches of `batch`, and `steps` in a round."""

    environment: str
    algorithm: str
    width: int
    batch: int
    steps: int

    def __str__(self) -> str:
        return f"{self.environment}, {self.algorithm.upper()}, {self.width} x 2, batch {self.batch}"

    @property
    def updates(self) -> int:
        """Gradient steps of an agent in a round."""
        return _EPOCHS * -(-self.steps // self.batch) if self.algorithm == "ppo" else self.steps

    def config(self, group_size: int = 0) -> Config:
        return Config(
            preset="ddpg",
            task=f"gym:{self.environment}",
            device="cpu",
            environment={"episode_steps": self.steps},
            network={"head_width": self.width},
            population={"size": _AGENTS, "group_size": group_size},
            replay={"capacity": 50_000, "minimum": 1},
            learner={
                "algorithm": self.algorithm,
                "batch_size": self.batch,
                "actor_learning_rate": 3e-4,
                "weight_decay": 0.0,
                **({"epochs": _EPOCHS} if self.algorithm == "ppo" else {"gradient_steps": self.steps}),
            },
            evaluation={"slices": 1, "lowest": 1},
        )

    def contenders(self) -> dict[str, _Population | _StableBaselines]:
        return {
            _OURS: _Population(self.config()),
            _OURS_GROUPED: _Population(self.config(group_size=1)),
            _THEIRS: _StableBaselines(self.config()),
        }


_CASES = (
    _Case("Pendulum-v1", "td3", 64, 64, steps=32),
    _Case("Pendulum-v1", "sac", 64, 64, steps=32),
    _Case("Pendulum-v1", "ppo", 64, 32, steps=64),
    _Case("Pendulum-v1", "td3", 256, 256, steps=16),
    _Case("Pendulum-v1", "sac", 256, 256, steps=16),
    _Case("HalfCheetah-v5", "td3", 256, 256, steps=16),
)


def run() -> Section:
    rows = [row for case in _CASES for row in _rows(case)]
    return Section(
        title="Beside Stable-Baselines3",
        method=f"{_AGENTS} agents play, and take as many updates as steps (PPO: {_EPOCHS} epochs of minibatches), in "
        "turns. *Eigen*: one population, whose agents play together and then learn in one bank, or one agent at a "
        "time. *Stable-Baselines3*: `learn` of its models, one after another. "
        "Networks, batches, rates and replay capacity are equal; with equal settings the updates of Eigen and "
        "Stable-Baselines3 agree to 1e-5 (`tests/eigen_core/learning/test_stable_baselines.py`). Per second: of CPU "
        f"time, of all agents together, medians of {_ROUNDS} rounds. Times ours: time to play and learn, relative to "
        "the one bank, medians of the rounds' ratios; above 1 the bank is faster.",
        columns=("", "environment steps / s", "updates / s", "times ours: CPU", "times ours: wall"),
        rows=rows,
        remarks=(
            "Only training is measured: no validation episodes, checkpoints or evolution here, no evaluation there.",
            "Agents of Eigen learn from one shared replay buffer; the others each have their own.",
            "Calls of small networks cost more than their products: a bank makes them once for all agents. Networks of "
            "256 on batches of 256 cost their products, which a bank does not save.",
        ),
    )


def _measured(contenders: Mapping[str, _Population | _StableBaselines]) -> dict[str, list[Stopwatch]]:
    kept: dict[str, list[Stopwatch]] = {name: [] for name in contenders}
    for turn in range(_WARM_UPS + _ROUNDS):
        for name, agents in contenders.items():
            gc.collect()
            watch = Stopwatch()
            with watch.of(watch.total):
                agents.round(watch)
            if turn >= _WARM_UPS:
                kept[name].append(watch)
    return kept


def _rows(case: _Case) -> list[list[str]]:
    kept = _measured(case.contenders())
    totals = {
        name: {clock: Times(tuple(watch.total[clock] for watch in watches)) for clock in _CLOCKS}
        for name, watches in kept.items()
    }
    rows = []
    for name, watches in kept.items():
        playing = median(watch.playing[_CPU] for watch in watches)
        learning = median(watch.total[_CPU] - watch.playing[_CPU] for watch in watches)
        ratios = [totals[name][clock].over(totals[_OURS][clock]) for clock in (_CPU, _WALL)]
        cells = [f"{_AGENTS * case.steps / playing:,.0f}", f"{_AGENTS * case.updates / learning:,.0f}"]
        rows.append([f"{case}: {name}", *cells, *(f"{ratio:.2f}" for ratio in ratios)])
    return rows
