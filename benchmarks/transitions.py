"""Size of a stored transition."""

import torch

from benchmarks.results import Section
from eigen_core.replay import Replay
from eigen_core.task.market_transitions import market_columns
from eigen_core.trading import PORTFOLIO_VALUES

_TRANSITIONS, _ASSETS = 50_000, 108
_DENSE_BYTES = 2 * 4 * 504 * 669 * 9


def run() -> Section:
    """Weigh a replay buffer of the reference size."""
    replay = Replay(_TRANSITIONS, market_columns(_ASSETS, PORTFOLIO_VALUES), torch.device("cpu"))
    each = replay.bytes_per_transition
    rows = [
        ["bytes of a transition", f"{each:,.0f}", f"{_DENSE_BYTES:,.0f}", f"1 : {_DENSE_BYTES / each:,.0f}"],
        [f"MB of {_TRANSITIONS:,}", f"{replay.nbytes / 1e6:,.1f}", f"{_TRANSITIONS * _DENSE_BYTES / 1e6:,.0f}", ""],
    ]
    return Section(
        title="Transitions in the replay buffer",
        method=f"{_TRANSITIONS:,} transitions of {_ASSETS} assets with their portfolio; dense is a transition that "
        "carries its two windows `[504, 669, 9]`, which is computed.",
        columns=("", "ours", "dense", "ratio"),
        rows=rows,
    )
