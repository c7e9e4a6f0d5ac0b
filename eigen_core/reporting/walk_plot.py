"""The equity of a walk forward as a picture: champions and baselines, with the ends of the folds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from eigen_core.account import EquityCurve
from eigen_core.reporting.report.content import NAMES
from eigen_core.reporting.report.curves import colour_of, draw_equity
from eigen_core.reporting.style import CHAMPION, figure_file, footnote

# Letters that fit into the line under the title.
_STORY = 118


def plot_walk(curves: Mapping[str, EquityCurve], ends: Sequence[str], verdict: str, path: Path) -> Path:
    """Write the equity of a walk, on a logarithmic axis.

    Args:
        curves: the champions' account, then baselines by name.
        ends: last date that each fold plays, as YYYY-MM-DD.
        verdict: in a sentence, of which the first part is shown.
        path: PNG file.
    """
    story = verdict.split(";")[0]
    story = story if len(story) <= _STORY else f"{story[:_STORY].rsplit(' ', 1)[0]} …"
    first, *others = curves
    shown = {"Champions": curves[first], **{NAMES[name]: curves[name] for name in others}}
    colours = {"Champions": CHAMPION, **{NAMES[name]: colour_of(name, 0) for name in others}}
    with figure_file(path, "Walk forward", story) as figure:
        axes = figure.add_axes((0.07, 0.13, 0.68, 0.70))
        draw_equity(axes, shown, colours, ends)
        footnote(figure, "Dotted: the last day of a fold. The next is played by a champion that was trained later.")
    return path
