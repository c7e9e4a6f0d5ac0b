"""Small trajectory buffers, and trajectories for them."""

import torch
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import TrajectoryBuffer
from eigen_core.task.replay import Column

CPU = torch.device("cpu")
COLUMNS = {
    "observation": Column(torch.float16, (2, 3)),
    "action": Column(torch.float32, (2,)),
    "reward": Column(torch.float32),
    "terminal": Column(torch.bool),
}


def buffer_of(steps: int, agents: int, trajectories: int) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(
        steps, agents, trajectories, COLUMNS, CPU, ["observation"], {"log_probability": Column(torch.float32)}
    )
    # What is not stored may be anything.
    for name in ("observation", "action", "reward", "value", "advantage", "return", "log_probability"):
        buffer.column(name).fill_(torch.nan)
    buffer.column("terminal").fill_(True)
    return buffer


def trajectory_of(length: int, *key: int, terminal: bool = True) -> dict[str, Tensor]:
    generator = keyed_generator(1, length, *key)
    return {
        "observation": torch.tensor(generator.standard_normal((length + 1, 2, 3)), dtype=torch.float16),
        "action": torch.tensor(generator.standard_normal((length, 2)), dtype=torch.float32),
        "reward": torch.tensor(generator.standard_normal(length), dtype=torch.float32),
        "terminal": (torch.arange(length) == length - 1) & terminal,
    }
