"""Islands: which island an agent comes from, what is taken, what is refused, and waiting for it."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import advance, content_of, small_state

from eigen_core.checkpoint import CHAMPION, RunLocation, create_run, open_session, stored_weights
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.names import generation_of
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.errors import InputError
from eigen_core.generation import TrainingState, evaluate, evolve, snapshot, train
from eigen_core.records import history_in
from eigen_core.reporting.tables import diversity_sentence
from flows.migration import await_immigrant, source_of

LOGGER = logging.getLogger(__name__)
EVERY = 2


def island(store: Path, seed: int, **sections: Any) -> TrainingState:
    return small_state(
        seed=seed,
        evolution={"islands": ["one", "two"], "migration_generations": EVERY},
        checkpoint={"store": str(store), "local": str(store), "keep_every": EVERY, "keep_last": 1},
        **sections,
    )


def stored(state: TrainingState, run: str, generations: int) -> None:
    """Train a run that takes nothing yet, and keep what retention keeps."""
    create_run(RunLocation.of(state.config.checkpoint, run), stored_values(state.config))
    with open_session(state.config.checkpoint, run) as session:
        for _ in range(generations):
            advance(state, 1)
            session.save(snapshot(state), stored_values(state.config), state.config.replay.compression)


def migrated(state: TrainingState) -> TrainingState:
    """The generation that an immigrant ends."""
    advance(state, 2 * EVERY - 1)
    evaluate(state)
    train(state)
    await_immigrant(state, "one", LOGGER)
    evolve(state)
    return state


def test_the_champion_of_another_island_joins_the_next_population(tmp_path: Path) -> None:
    stored(island(tmp_path, 2), "two", EVERY + 1)
    state = migrated(island(tmp_path, 1))
    other = RunLocation.of(state.config.checkpoint, "two").stored
    manifest = next(one for one in map(other.manifest, other.manifest_names()) if one.generation == EVERY)
    assert isinstance(manifest, Manifest)
    taken = stored_weights(other, manifest, CHAMPION)
    assert torch.equal(state.population.weights[-1].cpu(), taken)
    record = state.history[-1]
    assert record.descent[-1].origin == "immigrant"
    assert record.ancestors[-1] == -2 * EVERY
    assert sum(lineage.origin == "immigrant" for one in state.history for lineage in one.descent) == 1
    assert state.immigrant is None
    assert history_in([one.model_dump(mode="json") for one in state.history], 2 * EVERY) == list(state.history)
    assert " of the first 5 agents and 1 immigrant" in str(diversity_sentence(record))
    # The next generation takes none.
    await_immigrant(state, "one", LOGGER)
    assert state.immigrant is None


def test_what_is_taken_does_not_depend_on_how_far_the_other_island_is(tmp_path: Path) -> None:
    contents = []
    for generations in (EVERY, EVERY + 1):
        store = tmp_path / str(generations)
        stored(island(store, 2), "two", generations)
        contents.append(content_of(migrated(island(store, 1))))
    assert contents[0] == contents[1]


@pytest.mark.cpu
def test_an_island_waits_for_one_that_is_behind(tmp_path: Path) -> None:
    state, other = island(tmp_path, 1), island(tmp_path, 2)
    state.commit(generation=2 * EVERY - 1)
    waiting = threading.Thread(target=await_immigrant, args=(state, "one", LOGGER))
    waiting.start()
    time.sleep(1.0)
    assert waiting.is_alive()
    stored(other, "two", EVERY)
    waiting.join(60.0)
    assert state.immigrant is not None


def test_agents_of_other_networks_are_refused(tmp_path: Path) -> None:
    stored(island(tmp_path, 2, network={"head_width": 3}), "two", EVERY)
    state = island(tmp_path, 1)
    state.commit(generation=2 * EVERY - 1)
    with pytest.raises(InputError, match=r"island two has [\d,]+ weights, and the agents of one have"):
        await_immigrant(state, "one", LOGGER)
    assert state.immigrant is None


def test_a_generation_that_was_removed_is_not_waited_for(tmp_path: Path) -> None:
    other = island(tmp_path, 2)
    stored(other, "two", EVERY + 1)
    contents = RunLocation.of(other.config.checkpoint, "two").local
    names = [name for name in contents.manifest_names() if generation_of(name) == EVERY]
    contents.store.delete([contents.object_name(name) for name in names])
    state = island(tmp_path, 1)
    state.commit(generation=2 * EVERY - 1)
    with pytest.raises(InputError, match=f"Generation {EVERY} of island two is missing in"):
        await_immigrant(state, "one", LOGGER)


def test_evolution_without_the_immigrant_that_is_due_fails_and_changes_nothing(tmp_path: Path) -> None:
    state = advance(island(tmp_path, 1), 2 * EVERY - 1)
    evaluate(state)
    train(state)
    before = content_of(state)
    with pytest.raises(RuntimeError, match="immigrant"):
        evolve(state)
    assert content_of(state) == before


def test_each_island_draws_from_all_others() -> None:
    names = ["a", "b", "c", "d"]
    config = Config.model_validate({"evolution": {"islands": names}})
    assert {source_of(config, "b", generation) for generation in range(40)} == {"a", "c", "d"}


@pytest.mark.parametrize(
    ("evolution", "keep_every", "sentence"),
    [
        ({"islands": ["a"]}, 5, "two or more different runs"),
        ({"islands": ["a", "a"]}, 5, "two or more different runs"),
        ({"islands": ["a", "b"], "method": "pbt"}, 5, "evolution.method is pbt"),
        ({"islands": ["a", "b"], "enabled": False}, 5, "evolution.enabled is false"),
        ({"islands": ["a", "b"], "migration_generations": 7}, 5, "set checkpoint.keep_every to 7"),
        ({"islands": ["a", "b"]}, 0, "set checkpoint.keep_every to 10"),
    ],
)
def test_islands_that_cannot_work_are_refused(evolution: dict[str, object], keep_every: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config.model_validate({"evolution": evolution, "checkpoint": {"keep_every": keep_every}})
