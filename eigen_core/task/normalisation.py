"""Running moments that normalise observations and rewards; the host sums, so that bits do not depend on threads."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LIMIT = 10.0
_SMALLEST_VARIANCE = 1e-8


class RunningMoments:
    """Mean and variance of vectors of length `values`, in tensors of the task's state whose names begin with `name`."""

    def __init__(self, name: str, values: int, device: torch.device) -> None:
        self._name = name
        self._values = values
        self._device = device

    def initial(self) -> dict[str, Tensor]:
        """Return the state before any vector is added: count, sum and sum of squares, float64."""
        sums = torch.zeros(self._values, dtype=torch.float64, device=self._device)
        count = torch.zeros(1, dtype=torch.float64, device=self._device)
        return self._named(count, sums, sums.clone())

    def after(self, state: Mapping[str, Tensor], vectors: NDArray[np.float64]) -> dict[str, Tensor]:
        """Return the state with `[rows, values]` added."""
        count, sums, squares = self._of(state)
        return self._named(
            count + len(vectors),
            sums + torch.tensor(vectors.sum(axis=0), device=self._device),
            squares + torch.tensor((vectors * vectors).sum(axis=0), device=self._device),
        )

    def mean_and_scale(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse of the standard deviation, float32 `[values]`; 0 and 1 before any vector."""
        count, sums, squares = self._of(state)
        # Reading the count would wait for a GPU, and a CUDA graph could not capture it.
        rows = count.clamp_min(1.0)
        mean = sums / rows
        variance = (squares / rows - mean * mean).clamp_min(_SMALLEST_VARIANCE).masked_fill(count == 0.0, 1.0)
        return mean.float(), variance.rsqrt().float()

    def _of(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return state[f"{self._name}_count"], state[f"{self._name}_sum"], state[f"{self._name}_squares"]

    def _named(self, count: Tensor, sums: Tensor, squares: Tensor) -> dict[str, Tensor]:
        return {f"{self._name}_count": count, f"{self._name}_sum": sums, f"{self._name}_squares": squares}


def normalise(values: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Subtract the mean, multiply by `scale`, and clip to [-10, 10]: float32 `[..., values]`."""
    return ((values - mean) * scale).clamp_(-_LIMIT, _LIMIT)


def discounted_returns(rewards: NDArray[np.float64], ends: NDArray[np.bool_], gamma: float) -> NDArray[np.float64]:
    """Return the discounted sum of the rewards of each step and those before it in its episode, `[rows]`.

    Their standard deviation scales rewards (Engstrom et al. 2020, arXiv:2005.12729, section 3). The rows are whole
    episodes one after another, whose last steps `ends` marks.
    """
    returns = np.empty_like(rewards)
    total = 0.0
    for row, (reward, end) in enumerate(zip(rewards.tolist(), ends.tolist(), strict=True)):
        total = gamma * total + reward
        returns[row] = total
        if end:
            total = 0.0
    return returns
