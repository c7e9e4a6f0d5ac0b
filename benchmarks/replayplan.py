"""The memory plan beside what runs really take, over replay capacities, the buffer filled or nearly empty."""

import tempfile
from pathlib import Path

from benchmarks.memoryplan import GOAL, RUN_PHASES, Case, Compared, compare, pair, settings_of
from benchmarks.results import Section

_MORE = 3
# Many episodes a generation fill a large buffer in few of them; little else is done.
_FILLING = ("learner.gradient_steps=2", "reporting.plot_every=0")
CASES = (
    Case("50k", "50,000, full", "quickstart", ("replay.capacity=50000", "generations=7", *_FILLING)),
    Case("500k-few", "500,000, 7 % full", "quickstart", ("replay.capacity=500000", "generations=3", *_FILLING)),
    Case(
        "500k",
        "500,000, full",
        "quickstart",
        ("replay.capacity=500000", "evaluation.slices=50", "generations=5", *_FILLING),
    ),
    Case("5m-few", "5,000,000, 0.7 % full", "quickstart", ("replay.capacity=5000000", "generations=3", *_FILLING)),
    Case(
        "5m",
        "5,000,000, full",
        "quickstart",
        ("replay.capacity=5000000", "evaluation.slices=100", "generations=22", *_FILLING),
    ),
)


def run() -> Section:
    """Plan and train all cases, and go on with each for some generations."""
    with tempfile.TemporaryDirectory(prefix="eigen-replay-plan-", ignore_cleanup_errors=True) as folder:
        compared = [compare(case, Path(folder), more=_MORE) for case in CASES]
    worst = max((abs(error) for found in compared for error in _errors(found)), default=0.0)
    return Section(
        title="The memory plan over replay capacities",
        method="As above: MB planned / MB seen of `eigen train`, and of `eigen resume` for "
        f"{_MORE} generations more, with "
        "the error of each peak. Preset `quickstart` on the bundled prices: a transition takes 331 bytes. "
        + "; ".join(f"*{case.name}*: {settings_of(case)}" for case in CASES)
        + ". One torch thread.",
        columns=("replay.capacity", *RUN_PHASES, "peak", "error", "run on disk", "resumed: peak", "resumed: error"),
        rows=[[*found.row(), *_resumed_cells(found)] for found in compared],
        remarks=(f"The goal is an error of at most {GOAL:.0%} at each peak; the largest is {worst:.1%}.",),
    )


def _errors(found: Compared) -> list[float]:
    resumed = [] if found.resumed is None else [found.resumed[0] / found.resumed[1] - 1.0]
    return [found.error, *resumed]


def _resumed_cells(found: Compared) -> list[str]:
    return [] if found.resumed is None else [pair(*found.resumed), f"{100 * _errors(found)[1]:+.1f} %"]


def main() -> None:
    """Show the benchmark without keeping it."""
    from rich.console import Console

    run().show(Console(width=240))


if __name__ == "__main__":
    main()
