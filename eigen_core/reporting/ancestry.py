"""Who descends from whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eigen_core.records import GenerationRecord, Lineage, Origin


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
        Link(_parent(record, lineage, agent), Member(record.generation + 1, lineage.agent), lineage.origin)
        for record in history
        for lineage in record.descent
        for agent in dict.fromkeys(lineage.parents)
    ]


def _parent(record: GenerationRecord, lineage: Lineage, agent: int) -> Member:
    return Member(record.champion_generation if lineage.origin == "champion" else record.generation, agent)


def origins(history: Sequence[GenerationRecord], generation: int) -> Mapping[int, Origin]:
    """Return how the agents of `generation` came to be; an agent that is missing was there from the start."""
    record = record_of(history, generation - 1)
    return {} if record is None else {lineage.agent: lineage.origin for lineage in record.descent}


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
    if record is None:
        return None
    for lineage in record.descent:
        if lineage.agent == child.agent and lineage.parents:
            closer_to_second = len(lineage.parents) > 1 and lineage.blend is not None and lineage.blend < 0.5
            return _parent(record, lineage, lineage.parents[closer_to_second])
    return None
