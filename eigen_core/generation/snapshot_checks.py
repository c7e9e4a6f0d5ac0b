"""Whether what was loaded is what a run with this configuration can have left; its form was compared before."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from eigen_core.checkpoint import Ring, UnfitSnapshotError, tensors_sha256
from eigen_core.common.records import GenerationRecord
from eigen_core.config import ExplorationConfig
from eigen_core.evolution import Champion
from eigen_core.evolution.interface import Number
from eigen_core.generation.state import TrainingState
from eigen_core.task.replay import Replay


def require(condition: bool, file: str, what: str) -> None:
    """Raise `UnfitSnapshotError` for a part of a snapshot unless `condition` holds."""
    if not condition:
        raise UnfitSnapshotError(file, what)


def require_noise(exploration: ExplorationConfig, steps: int, noise_scale: float, generations: int) -> None:
    """Require the noise scale that so many generations, of so many steps each, lead to."""
    noise = exploration.scale
    for _ in range(generations):
        noise = max(exploration.minimum, noise * exploration.decay**steps)
    # Powers round differently from one processor to another.
    near = math.isclose(noise_scale, noise, rel_tol=1e-9)
    require(near, "state.json", f"has a noise scale of {noise_scale:g} where the history leads to {noise:g}")


def require_numbers(numbers: Mapping[str, Number], led_to: Mapping[str, Number]) -> None:
    """Require the numbers of the population method that the history leads to."""
    ordered = {**{name: numbers[name] for name in led_to if name in numbers}, **numbers}
    what = f"has a mutation of ({_in_words(ordered)}) where the history leads to ({_in_words(led_to)})"
    require(numbers == led_to, "state.json", what)


def _in_words(numbers: Mapping[str, Number]) -> str:
    return " ".join(f"{name}={value}" for name, value in numbers.items())


def require_champion(champion: Champion, newest: GenerationRecord) -> None:
    """Require that the champion is the one in the newest record, with weights that are numbers."""
    recorded = (newest.champion_generation, newest.champion_agent, newest.champion_validation, newest.champion_score)
    known = (champion.generation, champion.agent, champion.validation, champion.score) == recorded
    require(known, "state.json", "names another champion than the history")
    require_finite("champion.safetensors", {"weights": champion.weights, **champion.task_state})


def require_population(
    bounds: Mapping[str, tuple[float, float]], tensors: Mapping[str, Tensor], newest: GenerationRecord
) -> None:
    """Require finite values within the learner's bounds, and the weights in the newest record."""
    require_range("population.safetensors", tensors, bounds)
    same = tensors_sha256({"weights": tensors["weights"]}) == newest.weights_sha256
    require(same, "population.safetensors", "does not hold the weights that the history names")


def require_finite(file: str, tensors: Mapping[str, Tensor]) -> None:
    """Require finite values."""
    require_range(file, tensors, {})


def require_range(file: str, tensors: Mapping[str, Tensor], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Require finite values, within the bounds of their name where it has some."""
    for name, tensor in tensors.items():
        _require_range(file, name, tensor, *bounds.get(name, (-math.inf, math.inf)))


def require_replay(state: TrainingState, ring: Ring, newest: GenerationRecord, *, take_memory: bool) -> Replay:
    """Return the replay that a ring holds: whole episodes, finite values, the content in the newest record.

    Args:
        state: the run, before it is restored.
        ring: what was saved.
        newest: the newest record.
        take_memory: the replay may go on in the ring's own memory.
    """
    wrong = state.task.wrong_rows(ring)
    require(wrong is None, "replay", str(wrong))
    floating = {name: column for name, column in ring.columns.items() if column.is_floating_point()}
    require_finite("replay", {name: column[: ring.size] for name, column in floating.items()})
    columns = state.task.columns
    saved = Replay.from_ring(ring, columns, torch.device("cpu"), take_memory=True)
    same = tensors_sha256(saved.tensors()) == newest.replay_sha256
    require(same, "replay", "is not the one that the history names")
    return Replay.from_ring(ring, columns, state.device, take_memory=take_memory)


def _require_range(file: str, name: str, tensor: Tensor, low: float, high: float) -> None:
    """Require finite values from `low` to `high`; not a number is in no range."""
    if tensor.numel():
        lowest, highest = (float(bound) for bound in tensor.aminmax())
        inside = low <= lowest and highest <= high and math.isfinite(lowest) and math.isfinite(highest)
        require(inside, file, f"holds {name} from {lowest:g} to {highest:g}")
