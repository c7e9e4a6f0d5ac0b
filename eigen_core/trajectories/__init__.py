"""The trajectory buffer of on-policy learners: whole trajectories, their advantages, minibatches of their steps."""

from eigen_core.trajectories.buffer import ALL_AGENTS, Filled, TrajectoryBuffer
from eigen_core.trajectories.columns import Trajectory
from eigen_core.trajectories.minibatches import Minibatches

__all__ = ["ALL_AGENTS", "Filled", "Minibatches", "Trajectory", "TrajectoryBuffer"]
