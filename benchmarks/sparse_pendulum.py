"""A pendulum that hangs, is driven weakly, and is rewarded only while it stands."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from numpy.typing import NDArray

_TORQUE = 1.0
_UPRIGHT = np.cos(np.deg2rad(30.0))


class SparsePendulum(gymnasium.Wrapper[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], Any]):
    """Gymnasium's pendulum with half its torque, begun at rest within 0.1 rad of hanging straight down.

    Reward: 1 for each step that ends within 30 degrees of upright, else 0, as the task pendulum swingup of the
    DeepMind Control Suite has it (Tassa et al. 2018, arXiv:1801.00690).
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self.pendulum = PendulumEnv(render_mode=render_mode)
        self.pendulum.max_torque = _TORQUE
        super().__init__(self.pendulum)
        self.action_space = spaces.Box(-_TORQUE, _TORQUE, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        _, info = super().reset(seed=seed, options=options)
        angle = np.pi + self.pendulum.np_random.uniform(-0.1, 0.1)
        self.pendulum.state = np.array([angle, 0.0])
        return np.array([np.cos(angle), np.sin(angle), 0.0], dtype=np.float32), info

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observed, _, terminated, truncated, info = super().step(action)
        stands = bool(np.cos(self.pendulum.state[0]) > _UPRIGHT)
        return observed, float(stands), terminated, truncated, info


gymnasium.register("SparsePendulum-v0", "benchmarks.sparse_pendulum:SparsePendulum", max_episode_steps=300)
