"""Who descends from whom, on a family small enough to draw by hand."""

import itertools

from synthetic_run import make_run

from eigen_core.common.records import GenerationRecord, Lineage, Link, Member, champion_path, links, living, origins


def _family() -> list[GenerationRecord]:
    """Three agents; the champion (agent 2 of generation 1) comes back in generation 3, the next one is found in 4."""
    template = make_run(1, 3)[0][0]
    # Parents of the three agents that each generation breeds; the second has a share of the first parent's weights.
    breeding = (
        (("elite", (1,)), ((0, 1), 0.4), 1, (1, 2)),
        (("champion", (2,)), ((1, 1), 0.6), 0, (1, 2)),
        (("elite", (0,)), ((2, 0), 0.3), 0, (1, 2)),
        (("elite", (1,)), ((1, 2), 0.5), 1, (4, 1)),
    )
    history = []
    for generation, ((origin, kept), (parents, blend), mutated, champion) in enumerate(breeding, 1):
        descent = (
            Lineage(agent=0, origin=origin, parents=kept),  # type: ignore[arg-type] # one of the origins
            Lineage(agent=1, origin="offspring", parents=parents, blend=blend),
            Lineage(agent=2, origin="mutant", parents=(mutated,)),
        )
        update = {"champion_generation": champion[0], "champion_agent": champion[1], "generation": generation}
        history.append(template.model_copy(update={**update, "descent": descent}))
    return history


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
