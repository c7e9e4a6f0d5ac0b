"""The figure of who descends from whom."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from eigen_core.common.records import GenerationRecord, Link, Member, Origin, champion_path, links, living
from eigen_core.common.text import count
from eigen_core.reporting.style import (
    BLUE,
    CHAMPION,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    figure_file,
    footnote,
    generation_axis,
    tint,
)
from eigen_core.reporting.tables import NO_GENERATION

# More columns than this cannot be distinguished.
_GENERATIONS = 30
# More agents than this are a crowd: of their lines, only those that lead to the newest population are drawn.
_CROWD = 16

_COLOURS: Mapping[Origin, str] = {
    "initial": "#9A9A9A",
    "elite": BLUE,
    "offspring": GREEN,
    "mutant": PURPLE,
    "champion": CHAMPION,
    "learner": INK,
    "copy": ORANGE,
    "sample": SKY,
    "mean": VERMILLION,
    "immigrant": "#8A5A2B",
}
_WORDS: Mapping[Origin, str] = {
    "offspring": "offspring of two",
    "champion": "champion, re-injected",
    "learner": "learner, kept",
    "mean": "mean of the distribution",
    "immigrant": "from another run",
}


def plot_lineage(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write the lineage of the newest generations: agents as rows, generations as columns.

    Lines lead from parents to children, in the colour of the child's origin. The last column is the population bred by
    the newest generation, not evaluated yet.
    """
    with figure_file(path, "Lineage", _story(history)) as figure:
        if history:
            _draw(figure.add_axes((0.06, 0.125, 0.925, 0.675)), history)
            footnote(figure, "Pale: no descendant in the newest population. Hollow: bred, not evaluated yet.")
    return path


def _story(history: Sequence[GenerationRecord]) -> str:
    if not history:
        return NO_GENERATION
    record, path = history[-1], champion_path(history)
    hidden = record.champion_generation < history[-min(len(history), _GENERATIONS)].generation
    champion = f"Champion: agent {record.champion_agent} of generation {record.champion_generation}"
    if len(path) == 1:
        return f"{champion}, which was there from the start."
    return (
        f"{champion}{', not in the generations shown' if hidden else ''}; its line began "
        f"{count(len(path) - 1, 'step')} before, with agent {path[0].agent} of generation {path[0].generation}."
    )


def _draw(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    shown = history[-_GENERATIONS:]
    first, last = shown[0].generation, shown[-1].generation + 1
    agents = len(shown[-1].fitness)
    dot = min(6.0, 0.6 * axes.get_window_extent().height / axes.figure.dpi * 72.0 / agents)
    # One generation more: it bred the first that is shown.
    bred = history[-_GENERATIONS - 1 :]
    alive, born = living(bred), links(bred)
    came = {Member(one.generation + 1, new.agent): new.origin for one in bred for new in one.descent}
    members = [Member(generation, agent) for generation in range(first, last + 1) for agent in range(agents)]
    _draw_links(axes, [link for link in born if link.parent.generation >= first], alive, crowded=agents > _CROWD)
    came_as: list[Origin] = [came.get(member, "initial") for member in members]
    colours = [_COLOURS[origin] for origin in came_as]
    edges = [
        colour if member in alive or member.generation == last else tint(colour, 0.7)
        for member, colour in zip(members, colours, strict=True)
    ]
    faces = ["white" if member.generation == last else edge for member, edge in zip(members, edges, strict=True)]
    generations, rows = zip(*members, strict=True)
    axes.scatter(generations, rows, s=dot**2, c=faces, edgecolors=edges, linewidths=0.8, zorder=3)
    path = champion_path(history)
    axes.plot(*zip(*path, strict=True), color=CHAMPION, linewidth=2.6, zorder=4)
    axes.plot(*path[-1], "*", color=CHAMPION, markersize=max(11.0, 2.6 * dot), markeredgecolor="white", zorder=5)
    generation_axis(axes, first, last)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, agents) if agents <= 16 * step)
    axes.set_yticks(range(0, agents, step))
    axes.set_ylim(agents - 0.4, -0.6)
    axes.set_ylabel("agent")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _explain(axes, set(came_as), champion=path[-1].generation >= first)


def _draw_links(axes: Axes, born: Sequence[Link], alive: set[Member], *, crowded: bool) -> None:
    """Draw links to surviving agents above pale ones to the rest; hard pixels keep the files of busy pictures small."""
    strong = [link for link in born if link.child in alive]
    # Copies of one champion would make a fan of pale lines from a single point: their dots say enough.
    pale = [link for link in born if link.child not in alive and link.origin != "champion" and not crowded]
    for drawn, white, width, order in ((pale, 0.8, 0.8, 2.0), (strong, 0.35, 0.45 if crowded else 1.3, 2.1)):
        lines = LineCollection(
            [(link.parent, link.child) for link in drawn],
            colors=[tint(_COLOURS[link.origin], white) for link in drawn],
            linewidths=width,
            antialiaseds=drawn is strong and not crowded,
            zorder=order,
        )
        axes.add_collection(lines)


def _explain(axes: Axes, present: set[Origin], *, champion: bool) -> None:
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=5, linewidth=1.3, label=_WORDS.get(origin, origin))
        for origin, colour in _COLOURS.items()
        if origin in present
    ]
    if champion:
        line = Line2D([], [], color=CHAMPION, marker="*", markersize=11, linewidth=2.6, label="the champion's line")
        handles.append(line)
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize=8.5,
        handlelength=1.8,
        columnspacing=1.6,
        borderaxespad=0.2,
    )
