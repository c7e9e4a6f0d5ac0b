"""A Gymnasium environment by its name: whether agents can play it, its spaces, and how it is made."""

import logging
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

from eigen_core.config import Config, EnvironmentConfig
from eigen_core.errors import InputError
from eigen_core.units import count

logger = logging.getLogger(__name__)

Environment = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class EnvironmentFacts:
    """The size of an environment: all that a memory plan must know of it.

    Attributes:
        observation_values, action_values: lengths of a flattened observation and action; of a discrete action, the
            choices.
        episode_steps: most steps of an episode.
        discrete: an action is one of several choices.
    """

    observation_values: int
    action_values: int
    episode_steps: int
    discrete: bool = False

    def __str__(self) -> str:
        """The size in words."""
        sizes = (
            count(self.observation_values, "observed value"),
            f"actions of {count(self.action_values, 'choice' if self.discrete else 'value')}",
            f"episodes of at most {count(self.episode_steps, 'step')}",
        )
        return ", ".join(sizes)


@dataclass(frozen=True)
class OpenedEnvironment:
    """An environment whose observations are vectors and whose actions are vectors with bounds, or choices.

    Attributes:
        name: as the configuration has it, without `gym:`.
        make: returns a new one.
        facts: its size.
        action_shape: shape of an action.
        low, high: bounds of a flattened action, float32 `[values]`; of a discrete action, of each choice.
        first_choice: number of the first choice.
    """

    name: str
    make: Callable[[], Environment]
    facts: EnvironmentFacts
    action_shape: tuple[int, ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    first_choice: int = 0

    def played(self, actions: NDArray[np.float32]) -> NDArray[np.generic]:
        """Return actions as the environment takes them, from float32 `[count, values]`."""
        if self.facts.discrete:
            numbers: NDArray[np.int64] = self.first_choice + actions.argmax(axis=1)
            return numbers
        # A bound that was computed may lie beyond the bound by a rounding.
        return np.clip(actions, self.low, self.high).reshape(-1, *self.action_shape)

    @property
    def observation_values(self) -> int:
        """Length of a flattened observation."""
        return self.facts.observation_values

    @property
    def episode_steps(self) -> int:
        """Most steps of an episode."""
        return self.facts.episode_steps


def opened_for(config: Config) -> OpenedEnvironment:
    """Open the environment that a configuration names.

    Raises:
        InputError: see `open_environment`.
    """
    return open_environment(config.task.removeprefix("gym:"), config.environment)


def open_environment(name: str, settings: EnvironmentConfig) -> OpenedEnvironment:
    """Open an environment and look at its spaces.

    Args:
        name: an id of Gymnasium's registry (`Pendulum-v1`), one that a module registers when it is imported
            (`module:Name-v0`), or a class (`module:Class`).
        settings: the limit of its episodes.

    Raises:
        InputError: there is no such environment, it cannot be made, or agents cannot play it.
    """
    make, known_limit = _maker(name, settings)
    _log_physics_warnings()
    environment = _made(name, make)
    try:
        observations, actions = environment.observation_space, environment.action_space
    finally:
        environment.close()
    if not isinstance(observations, spaces.Box):
        raise InputError(
            f"task gym:{name}: its observations are {type(observations).__name__}, and agents observe vectors (Box): "
            "wrap it in gymnasium.wrappers.FlattenObservation."
        )
    first_choice = 0
    if isinstance(actions, spaces.Discrete):
        count, first_choice = int(actions.n), int(actions.start)
        low, high = np.zeros(count, dtype=np.float32), np.ones(count, dtype=np.float32)
    elif isinstance(actions, spaces.Box) and np.issubdtype(actions.dtype, np.floating):
        low, high = actions.low.astype(np.float32).ravel(), actions.high.astype(np.float32).ravel()
    else:
        raise InputError(
            f"task gym:{name}: its actions are {type(actions).__name__}, and agents act by vectors of real numbers "
            "(Box) or by choices (Discrete): choose an environment with such actions."
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError(
            f"task gym:{name}: its actions have no finite bounds, and agents need them: wrap it in "
            "gymnasium.wrappers.RescaleAction."
        )
    episode_steps = settings.episode_steps or known_limit
    if episode_steps is None:
        raise InputError(
            f"task gym:{name}: no limit of its episodes is registered: give environment.episode_steps, the most steps "
            "of an episode."
        )
    discrete = isinstance(actions, spaces.Discrete)
    facts = EnvironmentFacts(int(np.prod(observations.shape)), len(low), episode_steps, discrete)
    return OpenedEnvironment(name, make, facts, actions.shape or (), low, high, first_choice)


def _maker(name: str, settings: EnvironmentConfig) -> tuple[Callable[[], Environment], int | None]:
    """Return what makes the environment, and its registered limit of steps."""
    module, _, rest = name.rpartition(":")
    if module:
        try:
            found = getattr(import_module(module), rest, None)
        except ImportError as error:
            raise InputError(
                f"task gym:{name}: module {module} cannot be imported ({error}): install it, or name its folder in "
                "PYTHONPATH."
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
    # The checker of spaces and types would double the time of a step.
    return partial(
        gymnasium.make, spec, max_episode_steps=settings.episode_steps, disable_env_checker=True
    ), spec.max_episode_steps


def _made(name: str, make: Callable[[], Environment]) -> Environment:
    try:
        return make()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise InputError(f"task gym:{name}: it cannot be made: {_one_line(error)}") from error


def _log_physics_warnings() -> None:
    """Have MuJoCo's warnings logged: by itself it writes them to a file in the working directory."""
    if (physics := sys.modules.get("mujoco")) is not None:
        physics.set_mju_user_warning(_log_once)


@lru_cache(maxsize=1_000)
def _log_once(text: str) -> None:
    # Every environment that is made repeats what is wrong with its model.
    logger.warning("MuJoCo: %s", text)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."
