"""The population that a train phase returns to when it fails half-way: that of the last generation."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from eigen_core.generation.state import SavedPopulation, TrainingState
from eigen_core.memory import headroom_bytes
from eigen_core.population import Population, agent_groups
from eigen_core.units import size

logger = logging.getLogger(__name__)

_POPULATIONS = 2
"""A copy is made where this many populations fit: the copy itself, and gradients and activations on top."""
_GROUPS_IN_PLACE = 4
"""At least so many groups learn one after the other where no copy is made."""


def remember_saved(state: TrainingState, load: Callable[[], Mapping[str, Tensor]]) -> None:
    """Note that the population as it stands can be read again, from a checkpoint: `load` returns its tensors."""
    device = state.device
    state.commit(saved=SavedPopulation(state.generation, lambda: Population.from_tensors(load(), device)))


@contextmanager
def population_to_learn(state: TrainingState) -> Iterator[tuple[Population, list[slice]]]:
    """Yield the population that a train phase may write to, and can leave half-written, and the groups that learn.

    It is a copy where the memory allows it. Where it does not, it is the state's own, which the next call reads again
    from the checkpoint if this one failed: the commit of what was learned sets `half_learned` to False. Groups are
    small then, since each is copied. Without a checkpoint of the last generation it is a copy in any case.
    """
    _make_good(state)
    learning = state.method.learning(state.config)
    agents, group_size = state.population.size, state.group_size
    saved = _saved(state)
    needed = _POPULATIONS * state.population.nbytes
    # Asked last: with child processes it takes some milliseconds.
    if saved is None or (headroom := headroom_bytes(state.config.memory, state.device)) >= needed:
        yield state.population.clone(), agent_groups(learning.stop, group_size, learning.start)
        return
    logger.info(
        "%s are left, too little for a second population of %s: learning in place; a failure would read the "
        "checkpoint of generation %d again.",
        size(headroom),
        size(state.population.nbytes),
        state.generation,
    )
    state.commit(half_learned=True)
    in_place = min(group_size, max(1, agents // _GROUPS_IN_PLACE))
    yield state.population, agent_groups(learning.stop, in_place, learning.start)


def _make_good(state: TrainingState) -> None:
    if not state.half_learned:
        return
    saved = _saved(state)
    if saved is None:
        raise RuntimeError("the population was left half-learned, and the checkpoint that it came from is not known.")
    logger.info("Reading the population of generation %d again: learning had failed half-way.", saved.generation)
    state.commit(population=saved.load(), half_learned=False)


def _saved(state: TrainingState) -> SavedPopulation | None:
    return state.saved if state.saved.generation == state.generation else None
