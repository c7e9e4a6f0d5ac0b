"""Profiles of the phases of a generation (`eigen train --profile`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from eigen_core.common.files import without_file

_ROWS = 100


@dataclass(frozen=True)
class Profile:
    """Writes profiles (`torch.profiler`) of the phases of a generation into `folder`.

    They are `PHASE.trace.json.gz`, for Perfetto or chrome://tracing, and `PHASE.txt`, torch's table of operators: those
    that took longest first, on the GPU if there is one.
    """

    folder: Path
    generation: int

    def write(self, phase: str, taken: profile) -> None:
        """Write the profile of a phase; it replaces that of an earlier attempt at this phase."""
        self.folder.mkdir(parents=True, exist_ok=True)
        taken.export_chrome_trace(str(without_file(self.folder / f"{phase}.trace.json.gz")))
        device = "device" if torch.cuda.is_available() else "cpu"
        table = taken.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=_ROWS)
        without_file(self.folder / f"{phase}.txt").write_text(table, encoding="utf-8")


_profile: ContextVar[Profile | None] = ContextVar("eigen_profile", default=None)


@contextmanager
def profiled_to(profile_of_run: Profile | None) -> Iterator[None]:
    """Let `profiled` write to `profile_of_run` during the block; None: let it write nothing."""
    token = _profile.set(profile_of_run)
    try:
        yield
    finally:
        _profile.reset(token)


@contextmanager
def profiled(phase: str, generation: int) -> Iterator[None]:
    """Profile the block as a phase if `profiled_to` has named this generation; a block that fails leaves no profile."""
    wanted = _profile.get()
    if wanted is None or wanted.generation != generation:
        yield
        return
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    # On a GPU torch warns of events that it clears unless it accumulates them.
    with profile(activities=[ProfilerActivity.CPU, *gpu], acc_events=True) as taken:
        yield
    wanted.write(phase, taken)
