"""Transitions of a panel task in the replay: their columns, and the sampler of batches.

A transition stores its day (a row of the panel), not the window of features. Its next observation is of the day after,
with the portfolio stored in the next slot of the replay; the last transition of an episode is terminal.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring, slot_ranges
from eigen_core.task.replay import Column, Replay

EPISODE_END = "terminal"
"""Name of the bool column that marks the last step of an episode."""
_ROWS_AT_A_TIME = 1 << 18
"""Rows that `check_rows` checks at a time, which takes a few megabytes."""


def market_columns(
    assets: int, portfolio_values: int, action_values: int = 2, actions: torch.dtype = torch.float32
) -> dict[str, Column]:
    return {
        "day": Column(torch.int32, on_host=True),
        "step": Column(torch.int16),
        "portfolio": Column(torch.float16, (assets, portfolio_values)),
        "action": Column(actions, (assets, action_values)),
        "reward": Column(torch.float32),
        "terminal": Column(torch.bool),
    }


def stored_rewards(rewards: Tensor, steps: int) -> Tensor:
    """Return the rewards of the first `steps` days, float32 `[episodes, steps]`; later ones are added to the last."""
    stored = rewards[:, :steps].clone()
    # Added one by one: the order in which `sum` adds days would depend on the number of episodes.
    for later in rewards[:, steps:].unbind(1):
        stored[:, -1] += later
    return stored.float()


def rows_of(first_days: Tensor, portfolios: Tensor, actions: Tensor, rewards: Tensor) -> dict[str, Tensor]:
    """Return the transitions of whole episodes in order, as columns `[episodes * days, ...]`.

    Args:
        first_days: int64 `[episodes]`, day of each episode's first step.
        portfolios: float16 `[episodes, days, assets, values]`, before the decision; 0 values if agents observe none.
        actions: `[episodes, days, assets, values]`, as the policy stores them (`SampledActions.stored`).
        rewards: float32 `[episodes, days]`; see `stored_rewards`.
    """
    count, days = rewards.shape
    steps = torch.arange(days, device=rewards.device)
    return {
        "day": (first_days[:, None] + steps).flatten(),
        "step": steps.repeat(count),
        "portfolio": portfolios.flatten(0, 1),
        "action": actions.flatten(0, 1),
        "reward": rewards.flatten(),
        "terminal": (steps == days - 1).repeat(count),
    }


def stored_days(replay: Replay) -> NDArray[np.int32]:
    """Return the day of the transition in each slot, on the host: int32 `[size]`."""
    return replay.on_host("day").numpy()


def check_rows(ring: Ring, starts: Sequence[int], episode_bars: int) -> str | None:
    """Return why the rows of a stored replay cannot be whole episodes, as a phrase (`has ...`); None: they can.

    The ring is on the CPU. As row 0 began an episode and all episodes have `episode_bars` steps, the number of a row
    determines its step. `starts` are the possible first days of episodes.
    """
    began_before: Tensor | None = None
    possible = torch.tensor(starts)
    oldest = ring.written - ring.size
    for first, slots in slot_ranges(ring.capacity, oldest, ring.written, _ROWS_AT_A_TIME):
        steps = torch.arange(first, first + slots.stop - slots.start) % episode_bars
        if not torch.equal(ring.columns["step"][slots].long(), steps):
            return "has episodes whose steps are not in order"
        if not torch.equal(ring.columns["terminal"][slots], steps == episode_bars - 1):
            return "has episodes that do not end with their last step"
        began = ring.columns["day"][slots].long() - steps
        if not bool(torch.isin(began, possible).all()):
            return f"has episodes that do not begin on training days {starts[0]} to {starts[-1]}"
        joined = began if began_before is None else torch.cat([began_before, began])
        if bool(((joined[1:] != joined[:-1]) & (steps[len(steps) - len(joined) + 1 :] > 0)).any()):
            return "has episodes whose days do not follow one another"
        began_before = began[-1:]
    return None


class BlockSampler:
    """Implements `BatchSampler`: the rows (transitions) of a batch are of different days, all in one block of days.

    A day that occurs twice in a batch would make the encoder's gradient a sum whose order depends on the device. The
    rows of a day are equally likely. Next observations lie in the block that begins a day later.

    Args:
        row_days: day of each row, int32 `[rows]`.
        stop: the day after the last training day; no next observation is of a later day.
        most_steps: most days that a transition spans.

    Attributes:
        block_starts: first days of the blocks that have rows of at least `batch_size` different days, int64.
    """

    def __init__(
        self, row_days: NDArray[np.int32], block_bars: int, stop: int, most_steps: int, batch_size: int
    ) -> None:
        self._order = np.argsort(row_days, kind="stable")
        self._days, self._starts, self._counts = np.unique(row_days[self._order], return_index=True, return_counts=True)
        self._block_bars, self._stop, self._most_steps, self._batch_size = block_bars, stop, most_steps, batch_size
        starts = np.arange(max(stop - block_bars, 0) + 1, dtype=np.int64)
        low, high = self._places(starts)
        self.block_starts: NDArray[np.int64] = starts[high - low >= batch_size]

    def _places(self, block: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return first and last (exclusive) index into `_days` to draw from, for blocks that begin on days `block`."""
        end = block + self._block_bars
        last = end - np.where(end >= self._stop, 1, self._most_steps)
        return np.searchsorted(self._days, block), np.searchsorted(self._days, last, side="right")

    def draw_blocks(self, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return self.block_starts[generator.integers(0, len(self.block_starts), shape)]

    def draw(self, generator: np.random.Generator, block: int) -> NDArray[np.int64]:
        """Draw a batch of rows from the block with first day `block`; ValueError if it has too few different days."""
        low, high = (int(place) for place in self._places(np.int64(block)))  # type: ignore[arg-type] # one block
        chosen = low + generator.choice(high - low, size=self._batch_size, replace=False)
        within = generator.integers(0, self._counts[chosen])
        rows: NDArray[np.int64] = self._order[self._starts[chosen] + within]
        return rows
