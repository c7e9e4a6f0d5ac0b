"""Who descends from whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eigen_core.common.records import GenerationRecord, Lineage, Origin


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


def ancestors_after(
    history: Sequence[GenerationRecord], descent: Sequence[Lineage], generation: int, champion_generation: int
) -> tuple[int, ...]:
    """Return from which agent of the first generation each agent descends that is bred in `generation`.

    Of two parents, the one that gave the larger share of the weights is followed. Where records do not say who the
    ancestors are, those of earlier versions, the agents of the first generation after them count as the first.

    Args:
        history: the generations before.
        descent: of the bred agents.
        generation: in which they are bred.
        champion_generation: the generation of the champion.
    """

    def ancestors_of(born: int) -> tuple[int, ...]:
        record = record_of(history, born - 1)
        return record.ancestors if record else ()

    populations = {born: ancestors_of(born) for born in {generation, champion_generation}}
    found = []
    for lineage in descent:
        ancestors = populations[champion_generation if lineage.origin == "champion" else generation]
        parent = lineage.agent if (main := main_parent(lineage)) is None else main
        found.append(ancestors[parent] if ancestors else parent)
    return tuple(found)


def main_parent(lineage: Lineage) -> int | None:
    """Return the parent that gave the larger share of an agent's weights."""
    if not lineage.parents:
        return None
    closer_to_second = len(lineage.parents) > 1 and lineage.blend is not None and lineage.blend < 0.5
    return lineage.parents[closer_to_second]


def _main_parent(history: Sequence[GenerationRecord], child: Member) -> Member | None:
    record = record_of(history, child.generation - 1)
    if record is None:
        return None
    for lineage in record.descent:
        if lineage.agent == child.agent and (parent := main_parent(lineage)) is not None:
            return _parent(record, lineage, parent)
    return None
