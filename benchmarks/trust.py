"""Claims of skill on markets of noise, and on markets with planted edges of growing strength.

`python -m benchmarks.trust [--trials 100] [--edge-trials 20] [--out FOLDER]` makes the missing trials and draws
trust.png beside this file; it can be interrupted.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.results import Section, publish
from eigen_core.common.progress import progress_to
from eigen_core.common.text import percent
from eigen_core.config.loading import load_config
from eigen_core.judging.significance import POWER, SIGNIFICANCE
from eigen_core.judging.trust import TRIAL_PRESET, Trust, TrustTrials, with_trial_settings
from eigen_core.reporting.style import BLUE, BROWN, MUTED, VERMILLION, figure_file
from flows.cli.console import display_on
from flows.cli.judging import COLUMNS, rows_of, show_trial

_EDGES = (0.05, 0.1, 0.2, 0.3)
_PLOT = Path(__file__).with_suffix(".png")
_GOAL = "The goal is at most 5 claims on 100 markets of noise, and an edge of 0.1 found in 80 % of the trials."


def section_of(trust: Trust) -> Section:
    return Section(
        title="Verdicts on noise, and on edges of known strength",
        method="Each trial trains a small run (`eigen trust`, its default settings) on a market made from the bundled "
        "prices and judges its champion on the holdout, and the baseline `ridge`. In the first row markets are block "
        "bootstraps with random signs; in the others a feature with that information coefficient is added to the "
        "prices themselves.",
        columns=COLUMNS,
        rows=rows_of(trust),
        remarks=(*trust.sentences, _GOAL, "![Share of trials with a claim of skill](trust.png)"),
    )


def draw(trust: Trust, path: Path) -> None:
    with figure_file(path, "Which edges are found", trust.sentences[1]) as figure:
        axes = figure.add_axes((0.08, 0.12, 0.74, 0.7))
        points = [(0.0, trust.false_alarms, VERMILLION), *((edge, one, BLUE) for edge, one in trust.power.items())]
        for edge, claims, colour in points:
            axes.plot([edge, edge], claims.interval, color=colour, linewidth=1.2)
            axes.plot(edge, claims.share, "o", color=colour)
        known = [(edge, claims.share) for edge, claims in trust.power.items()]
        axes.plot(*zip(*known, strict=True), color=BLUE)
        ridge = [(edge or 0.0, claims.share) for edge, claims in trust.ridge.items()]
        axes.plot([edge for edge, _ in ridge], [share for _, share in ridge], "s--", color=BROWN, linewidth=1.2)
        for level, label in ((POWER, "found"), (SIGNIFICANCE, "allowed on noise")):
            axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=":")
            axes.annotate(
                f"{label}: {percent(level, 0)}", (1.01, level), xycoords=("axes fraction", "data"), va="center"
            )
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda share, _: percent(share, 0))
        axes.set_ylabel("trials that claim skill")
        axes.set_xlabel("information coefficient of the planted feature (red: noise; squares: ridge regression)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--edge-trials", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("trust-bench"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = TrustTrials(load_config(TRIAL_PRESET, with_trial_settings(["device=cpu"])), arguments.out)
    with display_on(Console(stderr=True), "trials") as display, progress_to(display):
        shown = partial(show_trial, display)
        noise = trials.run(arguments.trials, (), shown)
        edges = trials.run(arguments.edge_trials, _EDGES, shown)
    trust = Trust(noise.false_alarms, edges.power, ridge={**edges.ridge, **noise.ridge})
    draw(trust, _PLOT)
    publish("trust", section_of(trust))


if __name__ == "__main__":
    main()
