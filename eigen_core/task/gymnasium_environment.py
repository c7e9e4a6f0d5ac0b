"""Make a Gymnasium environment by its name, and check that agents can play it."""

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

from eigen_core.common.errors import InputError
from eigen_core.common.text import count
from eigen_core.config import Config, EnvironmentConfig

logger = logging.getLogger(__name__)

Environment = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class EnvironmentFacts:
    """Values of a flattened observation and of an action (choices, if discrete), and most steps of an episode."""

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
    """An environment whose observations are vectors and whose actions are vectors with bounds, or choices.

    Attributes:
        name: `task` of the configuration, without `gym:`.
        low, high: bounds of a flattened action, float32 `[values]`; 0 and 1 for each choice of a discrete one.
    """

    name: str
    make: Callable[[], Environment]
    facts: EnvironmentFacts
    action_shape: tuple[int, ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    first_choice: int = 0

    def environment_actions(self, actions: NDArray[np.float32]) -> NDArray[np.generic]:
        """Convert actions of a policy, float32 `[count, values]`, to the environment's action space."""
        if self.facts.discrete:
            numbers: NDArray[np.int64] = self.first_choice + actions.argmax(axis=1)
            return numbers
        # Rounding may move an action beyond a bound.
        return np.clip(actions, self.low, self.high).reshape(-1, *self.action_shape)


def open_environment(config: Config) -> OpenedEnvironment:
    """Make the environment that a task names, check its spaces, and play one step.

    The task names an id of Gymnasium's registry (`gym:Pendulum-v1`), one that a module registers when it is imported
    (`gym:module:Name-v0`), or a class (`gym:module:Class`).

    Raises:
        InputError: there is no such environment, making it fails, or agents cannot play it.
    """
    name, settings = config.task.removeprefix("gym:"), config.environment
    make, known_limit = _maker(name, settings)
    _log_physics_warnings()
    try:
        environment = make()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        advice = (
            " Eigen passes no arguments of its own: set task to an id that is registered with the right ones "
            "(gymnasium.register, kwargs), or give the constructor's arguments defaults."
        )
        raise InputError(
            f"task gym:{name}: making the environment failed: {_one_line(error)}"
            f"{advice if isinstance(error, TypeError) else ''}"
        ) from error
    try:
        opened = _with_spaces(name, make, environment, settings.episode_steps or known_limit)
        _require_played(opened, environment)
    finally:
        environment.close()
    return opened


def _with_spaces(
    name: str, make: Callable[[], Environment], environment: Environment, episode_steps: int | None
) -> OpenedEnvironment:
    observations, actions = environment.observation_space, environment.action_space
    if not isinstance(observations, spaces.Box):
        raise InputError(
            f"task gym:{name}: its observations are {type(observations).__name__}, but agents observe vectors (Box): "
            "wrap it in gymnasium.wrappers.FlattenObservation."
        )
    first_choice = 0
    if isinstance(actions, spaces.Discrete):
        choices, first_choice = int(actions.n), int(actions.start)
        low, high = np.zeros(choices, dtype=np.float32), np.ones(choices, dtype=np.float32)
    elif isinstance(actions, spaces.Box) and np.issubdtype(actions.dtype, np.floating):
        low, high = actions.low.astype(np.float32).ravel(), actions.high.astype(np.float32).ravel()
    else:
        raise InputError(
            f"task gym:{name}: its actions are {type(actions).__name__}, but agents act by vectors of real numbers "
            "(Box) or by choices (Discrete): choose an environment with such actions."
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError(
            f"task gym:{name}: its actions have no finite bounds, which agents need: wrap it in "
            "gymnasium.wrappers.RescaleAction."
        )
    if episode_steps is None:
        raise InputError(
            f"task gym:{name}: it is registered without max_episode_steps: give environment.episode_steps, the most "
            "steps of an episode."
        )
    discrete = isinstance(actions, spaces.Discrete)
    facts = EnvironmentFacts(int(np.prod(observations.shape)), len(low), episode_steps, discrete)
    return OpenedEnvironment(name, make, facts, actions.shape or (), low, high, first_choice)


def _require_played(opened: OpenedEnvironment, environment: Environment) -> None:
    """Play one step, and raise InputError if `reset` or `step` breaks Gymnasium's interface.

    Gymnasium's own `check_env` asks for more than agents need, such as rendering, and only warns of other shapes.
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
            f"{_one_line(error)} Correct it; `gymnasium.utils.env_checker.check_env` says more."
        ) from error


def _require_shape(name: str, values: Any, asked: tuple[int, ...] | None) -> None:  # noqa: ANN401 - what it returned
    if (shape := np.shape(values)) != asked:
        raise ValueError(f"the {name} has the shape {shape} instead of {asked}")


def _maker(name: str, settings: EnvironmentConfig) -> tuple[Callable[[], Environment], int | None]:
    """Return the constructor of the environment, and its registered limit of steps."""
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
    # Gymnasium's checker of spaces and types would double the time of a step.
    return partial(
        gymnasium.make, spec, max_episode_steps=settings.episode_steps, disable_env_checker=True
    ), spec.max_episode_steps


def _log_physics_warnings() -> None:
    """Log MuJoCo's warnings, which it would write to a file in the working directory."""
    if (physics := sys.modules.get("mujoco")) is not None:
        physics.set_mju_user_warning(_log_once)


@lru_cache(maxsize=1_000)
def _log_once(text: str) -> None:
    # Each environment that is made repeats the warnings about its model.
    logger.warning("MuJoCo: %s", text)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."
