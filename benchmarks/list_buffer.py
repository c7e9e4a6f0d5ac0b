"""How the system that came before collected trajectories: lists of tensors, one a step, joined anew at every update."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eigen_core.trajectories import Filled

Step = Mapping[str, Tensor]


class ListBuffer:
    """Trajectories of several workers in tensors that are allocated at every update.

    Attributes:
        columns: `[steps of all trajectories, ...]` each.
    """

    def __init__(self) -> None:
        self.columns: dict[str, Tensor] = {}

    def update(self, trajectories: Sequence[Sequence[Step]]) -> Filled:
        """Replace what is stored: transpose each trajectory to lists of columns, stack these, join the workers'."""
        transposed = [{name: [step[name] for step in steps] for name in steps[0]} for steps in trajectories]
        stacked = [{name: torch.stack(column) for name, column in columns.items()} for columns in transposed]
        self.columns = {name: torch.cat([columns[name] for columns in stacked]) for name in stacked[0]}
        rewards = self.columns["reward"]
        return Filled(len(rewards), float(rewards.mean()))
