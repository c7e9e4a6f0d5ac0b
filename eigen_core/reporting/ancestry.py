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


def origins(history: Sequence[GenerationRecord], generation: int) -> Mapping[int, Origin]:
    """Return how the agents of `generation` came to be; an agent that is missing was there from the start."""
    record = record_of(history, generation - 1)
    return {} if record is None else {descent.agent: descent.origin for descent in record.descent}


def record_of(history: Sequence[GenerationRecord], generation: int) -> GenerationRecord | None:
    """Return the record of a generation, None if it is not in `history`, whose generations follow each other."""
    index = generation - history[0].generation if history else -1
    return history[index] if 0 <= index < len(history) else None


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
    newest = history[-1]
    path = [Member(newest.champion_generation, newest.champion_agent)]
    while (parent := _main_parent(history, path[-1])) is not None:
        path.append(parent)
    return path[::-1]


def _main_parent(history: Sequence[GenerationRecord], child: Member) -> Member | None:
    record = record_of(history, child.generation - 1)
    descent = next((d for d in record.descent if d.agent == child.agent), None) if record is not None else None
    if record is None or descent is None or not descent.parents:
        return None
    closer_to_second = len(descent.parents) > 1 and descent.blend is not None and descent.blend < 0.5
    generation = record.champion_generation if descent.origin == "champion" else record.generation
    return Member(generation, descent.parents[1 if closer_to_second else 0])
