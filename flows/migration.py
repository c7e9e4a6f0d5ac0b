"""Migration between islands: runs of one store that take each other's champions."""

import logging
import time

from torch import Tensor

from eigen_core.checkpoint import CHAMPION, Damage, RunContents, RunLocation, stored_weights
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.names import generation_of
from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.generation import TrainingState
from eigen_core.randomness import keyed_generator

_POLL_SECONDS, _REMOTE_POLL_SECONDS = 0.5, 10.0
_SAY_SECONDS = 60.0

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


def source_of(config: Config, run: str, generation: int) -> str:
    """Return the island from which a run takes an agent at the end of a generation, drawn by its seed."""
    others = [island for island in config.evolution.islands if island != run]
    generator = keyed_generator(config.seed, generation, "evolve", "population", "migration")
    return others[int(generator.integers(len(others)))]


def await_immigrant(state: TrainingState, run: str, logger: Logger) -> None:
    """Give the state the immigrant of the generation under way if one is due; wait until its island has it.

    It is the champion that the island had `evolution.migration_generations` generations before. That generation stays
    in the store for good, so that neither the islands' speed nor a resume changes what is taken.

    Args:
        state: at the end of a generation.
        run: the name of its run.
        logger: receives a line for the immigrant, and one a minute while it is waited for.

    Raises:
        InputError: the island's networks are others, the generation was removed there, or it is damaged.
        StoreUnavailableError: the store does not answer.
    """
    config, generation = state.config, state.generation + 1
    if not config.evolution.migrates(generation):
        return
    source, wanted = source_of(config, run, generation), generation - config.evolution.migration_generations
    weights = _awaited_champion(RunLocation.of(config.checkpoint, source), wanted, logger)
    own = state.population.weights.shape[1]
    if weights.shape != (own,):
        raise InputError(
            f"The champion of island {source} has {weights.numel():,} weights, and the agents of {run} have {own:,}: "
            "islands take agents from each other only with equal networks and data. Train them with equal settings."
        )
    logger.info("immigrant: champion of generation %d of %s", wanted, source)
    state.commit(immigrant=weights.to(state.device))


def _awaited_champion(island: RunLocation, generation: int, logger: Logger) -> Tensor:
    said = time.monotonic()
    while True:
        for contents in island.contents():
            for manifest in _manifests_of(contents, generation):
                if isinstance(manifest, Manifest):
                    return stored_weights(contents, manifest, CHAMPION)
        _require_not_removed(island.stored, generation)
        if time.monotonic() - said >= _SAY_SECONDS:
            said = time.monotonic()
            logger.info("waiting for generation %d of island %s", generation, island.name)
        time.sleep(_REMOTE_POLL_SECONDS if island.remote else _POLL_SECONDS)


def _manifests_of(contents: RunContents, generation: int) -> list[Manifest | Damage]:
    return [contents.manifest(name) for name in contents.manifest_names() if generation_of(name) == generation]


def _require_not_removed(stored: RunContents, generation: int) -> None:
    """Refuse to wait for a generation that will not come: they are stored in their order."""
    if max(stored.generations(), default=0) < generation:
        return
    found = _manifests_of(stored, generation)
    if all(isinstance(one, Damage) for one in found):
        raise InputError(
            f"Generation {generation} of island {stored.name} is {'damaged' if found else 'missing'} in "
            f"{stored.store.url}, and another island takes an agent of it: `eigen verify {stored.name}` says more."
        )
