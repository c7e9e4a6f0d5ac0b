"""Size of a stored transition."""

import torch

from benchmarks.results import Section
from eigen_core.task.replay import Replay
from eigen_core.task.transitions import market_columns
from eigen_core.trading import PORTFOLIO_VALUES

_TRANSITIONS, _ASSETS = 50_000, 108
_DENSE_BYTES = 2 * 4 * 504 * 669 * 9


def run() -> Section:
    """Weigh replay buffers of the reference size."""
    rows = []
    for actions in (torch.float32, torch.float16):
        columns = market_columns(_ASSETS, PORTFOLIO_VALUES, actions=actions)
        replay = Replay(_TRANSITIONS, columns, torch.device("cpu"))
        each = replay.bytes_per_transition
        ratio = f"1 : {_DENSE_BYTES / each:,.0f}"
        mb = f"{replay.nbytes / 1e6:,.1f}", f"{_TRANSITIONS * _DENSE_BYTES / 1e6:,.0f}"
        rows.append([str(actions).removeprefix("torch."), f"{each:,.0f}", f"{_DENSE_BYTES:,.0f}", ratio, *mb])
    return Section(
        title="Transitions in the replay buffer",
        method=f"{_TRANSITIONS:,} transitions of {_ASSETS} assets with their portfolio; dense is a transition that "
        "carries its two windows `[504, 669, 9]`, which is computed.",
        columns=("replay.actions", "bytes: ours", "dense", "ratio", f"MB of {_TRANSITIONS:,}: ours", "dense"),
        rows=rows,
    )
