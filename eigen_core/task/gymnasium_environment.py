"""Gymnasium environments: make one by its name, check that agents can play it, and play episodes."""

import logging
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.text import count
from eigen_core.config import Config, EnvironmentConfig

logger = logging.getLogger(__name__)

Environment = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class EnvironmentSpec:
    """Values of a flattened observation, values of an action (choices if `discrete`), and most steps of an episode."""

    observation_values: int
    action_values: int
    episode_steps: int
    discrete: bool = False

    def __str__(self) -> str:
        sizes = (
            count(self.observation_values, "observed value"),
            f"actions of {count(self.action_values, 'choice' if self.discrete else 'value')}",
            f"episodes of at most {count(self.episode_steps, 'step')}",
        )
        return ", ".join(sizes)


@dataclass(frozen=True)
class OpenedEnvironment:
    """A Gymnasium environment that agents can play: it observes a `Box`, and acts by a bounded `Box` or `Discrete`.

    Attributes:
        name: `task` of the configuration, without `gym:`.
        make: makes a new environment.
        action_shape: shape of an action; () if it is discrete.
        low, high: bounds of a flattened action, float32 `[values]`; if it is discrete, 0 and 1 for each choice.
        first_choice: smallest value of a discrete action (`Discrete.start`).
    """

    name: str
    make: Callable[[], Environment]
    spec: EnvironmentSpec
    action_shape: tuple[int, ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    first_choice: int = 0

    def environment_actions(self, actions: NDArray[np.float32]) -> NDArray[np.generic]:
        """Convert a policy's actions, float32 `[count, values]`, to the environment's (a choice: the highest)."""
        if self.spec.discrete:
            numbers: NDArray[np.int64] = self.first_choice + actions.argmax(axis=1)
            return numbers
        # Rounding may move an action beyond a bound.
        return np.clip(actions, self.low, self.high).reshape(-1, *self.action_shape)


def open_environment(config: Config) -> OpenedEnvironment:
    """Make the Gymnasium environment that `config.task` names, check its spaces, and play one step.

    The task is `gym:` and the id of a registered environment (`gym:Pendulum-v1`), the id of an environment that a
    module registers when it is imported (`gym:module:Name-v0`), or a class (`gym:module:Class`).

    Raises:
        InputError: there is no environment of this name, making it fails, or agents cannot play it.
    """
    name, settings = config.task.removeprefix("gym:"), config.environment
    make, known_limit = _maker(name, settings)
    _log_physics_warnings()
    try:
        environment = make()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        advice = (
            " Eigen passes no arguments to the constructor: set task to an id that is registered with the arguments "
            "(gymnasium.register, kwargs), or give them defaults in the constructor."
        )
        raise InputError(
            f"task gym:{name}: making the environment failed: {_one_line(error)}"
            f"{advice if isinstance(error, TypeError) else ''}"
        ) from error
    try:
        opened = _with_spaces(name, make, environment, settings.episode_steps or known_limit)
        _require_playable(opened, environment)
    finally:
        environment.close()
    return opened


def _with_spaces(
    name: str, make: Callable[[], Environment], environment: Environment, episode_steps: int | None
) -> OpenedEnvironment:
    observations, actions = environment.observation_space, environment.action_space
    if not isinstance(observations, spaces.Box):
        raise InputError(
            f"task gym:{name}: its observation space is {type(observations).__name__}, but agents observe vectors "
            "(Box): wrap the environment in gymnasium.wrappers.FlattenObservation."
        )
    first_choice = 0
    if isinstance(actions, spaces.Discrete):
        choices, first_choice = int(actions.n), int(actions.start)
        low, high = np.zeros(choices, dtype=np.float32), np.ones(choices, dtype=np.float32)
    elif isinstance(actions, spaces.Box) and np.issubdtype(actions.dtype, np.floating):
        low, high = actions.low.astype(np.float32).ravel(), actions.high.astype(np.float32).ravel()
    else:
        raise InputError(
            f"task gym:{name}: its action space is {type(actions).__name__}, but agents act by vectors of real numbers "
            "(Box) or by choices (Discrete): choose an environment with one of these."
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError(
            f"task gym:{name}: each value of an action needs a finite low below a finite high: give the environment's "
            "action_space such bounds, or wrap it in gymnasium.wrappers.TransformAction with a bounded action_space."
        )
    if episode_steps is None:
        raise InputError(
            f"task gym:{name}: it is not registered with max_episode_steps: set environment.episode_steps, the most "
            "steps of an episode."
        )
    discrete = isinstance(actions, spaces.Discrete)
    spec = EnvironmentSpec(int(np.prod(observations.shape)), len(low), episode_steps, discrete)
    return OpenedEnvironment(name, make, spec, actions.shape or (), low, high, first_choice)


def _require_playable(opened: OpenedEnvironment, environment: Environment) -> None:
    """Play one step; raise InputError if `reset` or `step` does not follow Gymnasium's interface.

    Gymnasium's `check_env` requires more than agents need, such as rendering, and only warns of wrong shapes.
    """
    middle, asked = np.float32(0.5) * (opened.low + opened.high), environment.observation_space.shape
    call = "reset(seed=0)"
    try:
        observed, _ = environment.reset(seed=0)
        _require_shape("observation", observed, asked)
        call = "step(action)"
        observed, reward, _, _, _ = environment.step(opened.environment_actions(middle[None])[0])
        _require_shape("observation", observed, asked)
        _require_shape("reward", reward, ())
    except (TypeError, ValueError, AttributeError, AssertionError, LookupError, gymnasium.error.Error) as error:
        raise InputError(
            f"task gym:{opened.name}: its {call} does not follow Gymnasium's interface: {type(error).__name__}: "
            f"{_one_line(error)} Correct the environment; `gymnasium.utils.env_checker.check_env` says more."
        ) from error


def _require_shape(name: str, values: Any, asked: tuple[int, ...] | None) -> None:  # noqa: ANN401 - what it returned
    if (shape := np.shape(values)) != asked:
        raise ValueError(f"the {name} has the shape {shape} instead of {asked}")


def _maker(name: str, settings: EnvironmentConfig) -> tuple[Callable[[], Environment], int | None]:
    """Return the environment's constructor, and the max_episode_steps of its registration; None if it has none."""
    module, _, rest = name.rpartition(":")
    if module:
        try:
            found = getattr(import_module(module), rest, None)
        except ImportError as error:
            raise InputError(
                f"task gym:{name}: module {module} cannot be imported ({error}): install it, or add its folder to "
                "the environment variable PYTHONPATH."
            ) from error
        if isinstance(found, type) and issubclass(found, gymnasium.Env):
            return found, None
        name = rest
    try:
        spec = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise InputError(
            f"task gym:{name}: {_one_line(error)} Give the id of a registered environment, for example "
            "gym:Pendulum-v1, or a class as gym:module:Class."
        ) from error
    if ".mujoco." in str(spec.entry_point) and find_spec("mujoco"):
        import_module("mujoco")
    # Gymnasium's checker of spaces and types would double the time of a step.
    return partial(
        gymnasium.make, spec, max_episode_steps=settings.episode_steps, disable_env_checker=True
    ), spec.max_episode_steps


def _log_physics_warnings() -> None:
    """Log MuJoCo's warnings, which it would otherwise write to a file in the working directory."""
    if (physics := sys.modules.get("mujoco")) is not None:
        physics.set_mju_user_warning(_log_once)


@lru_cache(maxsize=1_000)
def _log_once(text: str) -> None:
    # Each environment that is made repeats the warnings about its model.
    logger.warning("MuJoCo: %s", text)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."


ActionFunction = Callable[[NDArray[np.float32], int], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""From observations and their step to actions, natural and as the policy stores them; arrays `[episodes, values]`."""


@dataclass(frozen=True)
class EpisodeArrays:
    """Episodes of unequal length, `[episodes, most steps, ...]`; values after an episode's end have no meaning.

    Attributes:
        observations: float32 `[episodes, most steps + 1, values]`, before each step and after the last one.
        actions: actions as the policy stores them, float32 `[episodes, most steps, values]`.
        rewards: float64 `[episodes, most steps]`; zeros after the end.
        lengths: number of steps of each episode, int64 `[episodes]`.
        terminated: bool `[episodes]`, the environment terminated the episode; false: the episode was truncated.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]

    def rows(self) -> dict[str, NDArray[np.generic]]:
        """Return the transitions, sorted by episode and step: `[rows, ...]` for each column of `GymnasiumTask`."""
        steps = np.arange(self.rewards.shape[1])
        played = steps < self.lengths[:, None]
        ends = steps == self.lengths[:, None] - 1
        return {
            "observation": self.observations[:, :-1][played],
            "next_observation": self.observations[:, 1:][played],
            "action": self.actions[played],
            "reward": self.rewards[played].astype(np.float32),
            "terminal": (ends & self.terminated[:, None])[played],
            "ends": ends[played],
        }


class EnvironmentPool:
    """Environments that are made once and reused: `reset` with a seed makes an episode independent of earlier ones."""

    def __init__(self, opened: OpenedEnvironment) -> None:
        self._opened = opened
        self._environments: list[Environment] = []

    def play(self, seeds: NDArray[np.int64], act: ActionFunction) -> EpisodeArrays:
        """Play an episode for each seed, side by side; FloatingPointError if an observation or reward is not finite."""
        opened, count = self._opened, len(seeds)
        while len(self._environments) < count:
            self._environments.append(opened.make())
        most = opened.spec.episode_steps
        observations = np.zeros((count, most + 1, opened.spec.observation_values), dtype=np.float32)
        actions = np.zeros((count, most, len(opened.low)), dtype=np.float32)
        rewards = np.zeros((count, most), dtype=np.float64)
        lengths = np.full(count, most, dtype=np.int64)
        terminated = np.zeros(count, dtype=np.bool_)
        for index, seed in enumerate(seeds.tolist()):
            observations[index, 0] = np.ravel(self._environments[index].reset(seed=seed)[0])
            if not np.isfinite(observations[index, 0]).all():
                raise FloatingPointError(_not_finite(opened, seed, 0, 0.0, observations[index, 0]))
        playing = list(range(count))
        for step in range(most):
            if not playing:
                break
            # Episodes that have ended get actions too: arrays of equal shapes give equal bits.
            taken, actions[:, step] = act(observations[:, step], step)
            played = opened.environment_actions(taken)
            for index in tuple(playing):
                observed, reward, terminal, truncated, _ = self._environments[index].step(played[index])
                observations[index, step + 1] = np.ravel(observed)
                rewards[index, step] = reward
                if not (math.isfinite(reward) and np.isfinite(observations[index, step + 1]).all()):
                    raise FloatingPointError(_not_finite(opened, seeds[index], step + 1, float(reward), observed))
                if terminal or truncated:
                    lengths[index], terminated[index] = step + 1, terminal
                    playing.remove(index)
        return EpisodeArrays(observations, actions, rewards, lengths, terminated)


def _not_finite(opened: OpenedEnvironment, seed: int, step: int, reward: float, observed: object) -> str:
    values = np.ravel(observed)  # type: ignore[call-overload] # whatever the environment gave
    wrong = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
    what = f"the observed value {values[wrong[0]]} (number {wrong[0]})" if len(wrong) else f"the reward {reward}"
    where = f"step {step} of the episode with seed {seed}" if step else f"reset(seed={seed})"
    return f"Environment {opened.name} gave {what}, which is not finite, in {where}. Correct the environment's code."
