"""Who descends from whom, on a family small enough to draw by hand."""

import itertools

from synthetic_run import make_run

from eigen_core.common.records import GenerationRecord, Lineage, Link, Member, champion_path, links, living, origins


def _family() -> list[GenerationRecord]:
    """Three agents; the champion (agent 2 of generation 1) comes back in generation 3, the next one is found in 4."""
    template = make_run(1, 3)[0][0]
    breeding = [
        (
            Lineage(agent=0, origin="elite", parents=(1,)),
            Lineage(agent=1, origin="offspring", parents=(0, 1), blend=0.4),
            Lineage(agent=2, origin="mutant", parents=(1,)),
        ),
        (
            Lineage(agent=0, origin="champion", parents=(2,)),
            Lineage(agent=1, origin="offspring", parents=(1, 1), blend=0.6),
            Lineage(agent=2, origin="mutant", parents=(0,)),
        ),
        (
            Lineage(agent=0, origin="elite", parents=(0,)),
            Lineage(agent=1, origin="offspring", parents=(2, 0), blend=0.3),
            Lineage(agent=2, origin="mutant", parents=(0,)),
        ),
        (
            Lineage(agent=0, origin="elite", parents=(1,)),
            Lineage(agent=1, origin="offspring", parents=(1, 2), blend=0.5),
            Lineage(agent=2, origin="mutant", parents=(1,)),
        ),
    ]
    champions = [(1, 2), (1, 2), (1, 2), (4, 1)]
    return [
        template.model_copy(
            update={
                "generation": generation,
                "descent": descent,
                "champion_generation": champion[0],
                "champion_agent": champion[1],
            }
        )
        for generation, (descent, champion) in enumerate(zip(breeding, champions, strict=True), start=1)
    ]


def test_links_lead_from_each_parent_once_and_from_where_the_champion_was_found() -> None:
    found = links(_family()[:2])
    assert found == [
        Link(Member(1, 1), Member(2, 0), "elite"),
        Link(Member(1, 0), Member(2, 1), "offspring"),
        Link(Member(1, 1), Member(2, 1), "offspring"),
        Link(Member(1, 1), Member(2, 2), "mutant"),
        Link(Member(1, 2), Member(3, 0), "champion"),
        Link(Member(2, 1), Member(3, 1), "offspring"),
        Link(Member(2, 0), Member(3, 2), "mutant"),
    ]


def test_the_path_follows_the_larger_share_and_jumps_back_to_the_champion() -> None:
    assert champion_path(_family()) == [Member(1, 2), Member(3, 0), Member(4, 1)]
    assert champion_path(_family()[:1]) == [Member(1, 2)]
    assert champion_path([]) == []


def test_those_live_who_left_weights_in_the_newest_population() -> None:
    alive = living(_family())
    assert alive == {
        *(Member(5, agent) for agent in range(3)),
        Member(4, 1),
        Member(4, 2),
        Member(3, 0),
        Member(3, 2),
        Member(2, 0),
        Member(1, 1),
        Member(1, 2),
    }
    assert living([]) == set()


def test_origins_come_from_the_generation_before() -> None:
    family = _family()
    assert origins(family, 1) == {}
    assert origins(family, 3) == {0: "champion", 1: "offspring", 2: "mutant"}


def test_the_path_of_a_long_run_is_made_of_links() -> None:
    history, _ = make_run(40, 12)
    pairs = {(link.parent, link.child) for link in links(history)}
    path = champion_path(history)
    assert path[0].generation == 1
    assert all(step in pairs for step in itertools.pairwise(path))
