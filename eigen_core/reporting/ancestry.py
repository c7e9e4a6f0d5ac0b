"""Who descends from whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eigen_core.records import Descent, GenerationRecord, Origin


class Member(NamedTuple):
    """An agent of one generation; `agent` is its index in that population."""

    generation: int
    agent: int


class Link(NamedTuple):
    """A parent and a child. A champion that is re-injected may be many generations older than its copy."""

    parent: Member
    child: Member
    origin: Origin


def links(history: Iterable[GenerationRecord]) -> list[Link]:
    """Return all links of a run, in the order of the generations and of the children in them."""
    return [
        Link(parent, Member(record.generation + 1, descent.agent), descent.origin)
        for record in history
        for descent in record.descent
        for parent in _parents(record, descent)
    ]


def _parents(record: GenerationRecord, descent: Descent) -> list[Member]:
    generation = record.champion_generation if descent.origin == "champion" else record.generation
    return [Member(generation, agent) for agent in dict.fromkeys(descent.parents)]


def origins(history: Iterable[GenerationRecord], generation: int) -> Mapping[int, Origin]:
    """Return how the agents of `generation` came to be; an agent that is missing was there from the start."""
    return {
        descent.agent: descent.origin
        for record in history
        if record.generation == generation - 1
        for descent in record.descent
    }


def living(history: Iterable[GenerationRecord]) -> set[Member]:
    """Return the newest population and all whose weights live on in it."""
    born = links(history)
    newest = max((link.child.generation for link in born), default=0)
    alive = {link.child for link in born if link.child.generation == newest}
    for link in reversed(born):
        if link.child in alive:
            alive.add(link.parent)
    return alive


def champion_path(history: Sequence[GenerationRecord]) -> list[Member]:
    """Return the champion's ancestors and the champion, oldest first.

    Of two parents, the one that gave the larger share of the weights is followed.
    """
    if not history:
        return []
    born = {
        Member(record.generation + 1, descent.agent): (record, descent)
        for record in history
        for descent in record.descent
        if descent.parents
    }
    path = [Member(history[-1].champion_generation, history[-1].champion_agent)]
    while path[-1] in born:
        record, descent = born[path[-1]]
        closer_to_second = len(descent.parents) > 1 and descent.blend is not None and descent.blend < 0.5
        main = descent.parents[1 if closer_to_second else 0]
        generation = record.champion_generation if descent.origin == "champion" else record.generation
        path.append(Member(generation, main))
    return path[::-1]
