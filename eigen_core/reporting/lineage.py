"""The figure of who descends from whom."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from eigen_core.records import GenerationRecord, Origin
from eigen_core.reporting.ancestry import Link, Member, champion_path, links, living
from eigen_core.reporting.style import (
    BLUE,
    CHAMPION,
    GREEN,
    PURPLE,
    figure_file,
    footnote,
    generation_axis,
    note,
    tint,
)
from eigen_core.units import count

# More columns than this cannot be told apart.
LINEAGE_GENERATIONS = 30
# More agents than this are a crowd: of their lines, only those that lead to the newest population are drawn.
_CROWD = 16

_COLOURS: Mapping[Origin, str] = {
    "initial": "#9A9A9A",
    "elite": BLUE,
    "offspring": GREEN,
    "mutant": PURPLE,
    "champion": CHAMPION,
}
_WORDS: Mapping[Origin, str] = {
    "initial": "initial",
    "elite": "elite",
    "offspring": "offspring of two",
    "mutant": "mutant",
    "champion": "champion, re-injected",
}


def plot_lineage(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write the lineage of the newest generations: agents as rows, generations as columns.

    Lines lead from parents to children, in the colour of how the child came to be. The last column is the population
    that the newest generation bred and nobody has evaluated yet.
    """
    with figure_file(path, "Lineage", _story(history)) as figure:
        axes = figure.add_axes((0.06, 0.115, 0.925, 0.685))
        if history:
            _draw(axes, history)
            footnote(figure, "Pale: nothing of it lives on in the newest population. Hollow: bred, not evaluated yet.")
        else:
            note(axes, "No generation is complete.")
    return path


def _story(history: Sequence[GenerationRecord]) -> str:
    if not history:
        return "No generation is complete."
    record, path = history[-1], champion_path(history)
    hidden = record.champion_generation < history[-min(len(history), LINEAGE_GENERATIONS)].generation
    champion = f"Champion: agent {record.champion_agent} of generation {record.champion_generation}"
    if len(path) == 1:
        return f"{champion}, which was there from the start."
    return (
        f"{champion}{', not in the generations shown' if hidden else ''}; its line began "
        f"{count(len(path) - 1, 'step')} before, with agent {path[0].agent} of generation {path[0].generation}."
    )


def _draw(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    shown = history[-LINEAGE_GENERATIONS:]
    first, last = shown[0].generation, shown[-1].generation + 1
    agents = len(shown[-1].fitness)
    pitch = axes.get_window_extent().height / axes.figure.dpi * 72.0 / agents
    dot = min(6.0, 0.6 * pitch)
    # One generation more: it bred the first that is shown.
    bred = history[-LINEAGE_GENERATIONS - 1 :]
    alive = living(bred)
    every_link = links(bred)
    origin_of = {link.child: link.origin for link in every_link}
    members = [Member(generation, agent) for generation in range(first, last + 1) for agent in range(agents)]
    _draw_links(axes, [link for link in every_link if link.parent.generation >= first], alive, crowded=agents > _CROWD)
    for origin, colour in _COLOURS.items():
        here = [member for member in members if origin_of.get(member, "initial") == origin]
        _draw_dots(axes, [member for member in here if member.generation == last], colour, "white", dot)
        evaluated = [member for member in here if member.generation < last]
        _draw_dots(axes, [member for member in evaluated if member in alive], colour, colour, dot)
        pale = tint(colour, 0.7)
        _draw_dots(axes, [member for member in evaluated if member not in alive], pale, pale, dot)
    _draw_champion(axes, champion_path(history), dot)
    generation_axis(axes, first, last)
    _agent_axis(axes, agents)
    present = {origin_of.get(member, "initial") for member in members}
    _explain(axes, present, champion=history[-1].champion_generation >= first)


def _agent_axis(axes: Axes, agents: int) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, agents) if agents <= 16 * step)
    axes.set_yticks(range(0, agents, step))
    axes.set_ylim(agents - 0.4, -0.6)
    axes.set_ylabel("agent")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_links(axes: Axes, born: Sequence[Link], alive: set[Member], *, crowded: bool) -> None:
    """Draw lines to what lives on above pale ones to the rest; hard pixels keep the files of busy pictures small."""
    for origin, colour in _COLOURS.items():
        lines = [(link.parent, link.child) for link in born if link.origin == origin and link.child in alive]
        width = 0.45 if crowded else 1.3
        strong = LineCollection(lines, colors=tint(colour, 0.35), linewidths=width, antialiaseds=not crowded)
        axes.add_collection(strong).set_zorder(2.1)
        # Copies of one champion would make a fan of pale lines from a single point: their dots say enough.
        if not crowded and origin != "champion":
            lines = [(link.parent, link.child) for link in born if link.origin == origin and link.child not in alive]
            pale = LineCollection(lines, colors=tint(colour, 0.8), linewidths=0.8, antialiaseds=False)
            axes.add_collection(pale).set_zorder(2.0)


def _draw_dots(axes: Axes, members: Sequence[Member], edge: str, face: str, size: float) -> None:
    axes.plot(
        [member.generation for member in members],
        [member.agent for member in members],
        "o",
        color=edge,
        markersize=size,
        markerfacecolor=face,
        markeredgewidth=0.8,
        zorder=3,
    )


def _draw_champion(axes: Axes, path: Sequence[Member], size: float) -> None:
    axes.plot(*zip(*path, strict=True), color=CHAMPION, linewidth=2.6, zorder=4)
    axes.plot(*path[-1], "*", color=CHAMPION, markersize=max(11.0, 2.6 * size), markeredgecolor="white", zorder=5)


def _explain(axes: Axes, present: set[Origin], *, champion: bool) -> None:
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=5, linewidth=1.3, label=_WORDS[origin])
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
