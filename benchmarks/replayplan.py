"""The memory plan beside what runs really take, over replay capacities, the buffer filled or nearly empty."""

import tempfile
from pathlib import Path

from benchmarks.memoryplan import GOAL, RUN_PHASES, Case, compare, settings_of
from benchmarks.results import Section

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
    """Plan and train all cases."""
    with tempfile.TemporaryDirectory(prefix="eigen-replay-plan-", ignore_cleanup_errors=True) as folder:
        compared = [compare(case, Path(folder)) for case in CASES]
    worst = max(abs(found.error) for found in compared)
    return Section(
        title="The memory plan over replay capacities",
        method="As above: MB planned / MB seen of `eigen train`. A transition of the bundled prices takes 331 bytes. "
        + "; ".join(f"*{case.name}*: {settings_of(case)}" for case in CASES)
        + ". One torch thread.",
        columns=("replay.capacity", *RUN_PHASES, "peak", "error", "run on disk"),
        rows=[found.row() for found in compared],
        remarks=(f"The goal is an error of at most {GOAL:.0%} at the peak; the largest is {worst:.1%}.",),
    )


def main() -> None:
    """Show the benchmark without keeping it."""
    from rich.console import Console

    run().show(Console(width=240))


if __name__ == "__main__":
    main()
