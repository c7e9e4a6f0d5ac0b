"""A Gymnasium environment whose episodes are of unequal length: a walk that ends when it leaves the unit square."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

UNEVEN: dict[str, Any] = {
    "task": f"gym:{__name__}:UnevenEnvironment",
    "environment": {"episode_steps": 9, "normalise_observations": True, "normalise_rewards": True},
    "exploration": {"scale": 0.5},
    "replay": {"capacity": 95, "minimum": 20},
}
"""Sections of a small configuration; episodes have 1 to 9 steps."""
RAW: dict[str, Any] = {"normalise_observations": False, "normalise_rewards": False}


class UnevenEnvironment(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Observes `[2, 2]`: position, last move. The reward is how far it is from the border."""

    observation_space = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
    action_space = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([1.0, 3.0], np.float32))
    fails_at: int | None = None
    """Number of the step, of all environments together, that raises an error."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._position, self._move = self.np_random.uniform(-0.2, 0.2, 2), np.zeros(2)
        return self._observed(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if UnevenEnvironment.fails_at is not None:
            UnevenEnvironment.fails_at -= 1
            if UnevenEnvironment.fails_at == 0:
                raise OSError("the environment is gone")
        assert self.action_space.contains(action)
        return self._moved(action)

    def _moved(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._move = 0.1 * action + self.np_random.normal(0.0, 0.1, 2)
        self._position = self._position + self._move
        distance = 1.0 - float(np.abs(self._position).max())
        return self._observed(), distance, distance < 0.0, False, {}

    def _observed(self) -> NDArray[np.float64]:
        return np.stack([self._position, self._move])


class OtherUnitsEnvironment(UnevenEnvironment):
    """The same in other units: what is observed times 64, rewards times 1,024."""

    def _moved(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observed, reward, *rest = super()._moved(action)
        return observed, 1024.0 * reward, *rest

    def _observed(self) -> NDArray[np.float64]:
        return 64.0 * super()._observed()


class DiscreteEnvironment(UnevenEnvironment):
    """Acts by numbers: moves to one of three sides."""

    action_space = spaces.Discrete(3, start=4)  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        moves = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
        return self._moved(moves[int(action) - 4])


class BrokenEnvironment(UnevenEnvironment):
    def __init__(self, rooms: int) -> None:
        """Need an argument that is not given."""


gymnasium.register("Uneven-v0", f"{__name__}:UnevenEnvironment", max_episode_steps=9)
gymnasium.register("WrongArguments-v0", f"{__name__}:UnevenEnvironment", kwargs={"rooms": 1})


class NotFiniteEnvironment(UnevenEnvironment):
    """Its third reward is not a number."""

    _steps = 0

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observed, reward, *rest = super().step(action)
        self._steps += 1
        return observed, np.nan if self._steps == 3 else reward, *rest


def _with(**changes: Any) -> type[UnevenEnvironment]:
    return type("ChangedEnvironment", (UnevenEnvironment,), changes)


def _with_step(changed: Callable[..., Any]) -> type[UnevenEnvironment]:
    """Let `step` return something else: `changed` receives observation, reward, terminated, truncated and info."""
    return _with(step=lambda self, action: changed(*UnevenEnvironment.step(self, action)))


EndlessEnvironment = _with_step(lambda observed, reward, _, *rest: (observed, reward, False, *rest))
OldStepEnvironment = _with_step(lambda observed, reward, ended, cut, info: (observed, reward, ended or cut, info))
OtherShapeEnvironment = _with_step(lambda observed, *rest: (observed[0], *rest))
VectorRewardEnvironment = _with_step(lambda observed, reward, *rest: (observed, np.array([reward, reward]), *rest))
UnseededEnvironment = _with(reset=lambda self: UnevenEnvironment.reset(self))
ManyChoicesEnvironment = _with(action_space=spaces.MultiDiscrete([2, 3]))
UnboundedEnvironment = _with(action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))
DictionaryEnvironment = _with(observation_space=spaces.Dict({"position": spaces.Box(-1.0, 1.0, (2,))}))
