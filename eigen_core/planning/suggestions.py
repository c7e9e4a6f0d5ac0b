"""Settings with which a run would fit, found by planning the run with each of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from pydantic import ValidationError

from eigen_core.common.text import size
from eigen_core.config import BatchLearnerConfig, BatchSamplingConfig, Config, merge
from eigen_core.networks.encoders import encoder_class
from eigen_core.planning.plan import Plan
from eigen_core.planning.probe import ProbeResult

_MOST_PLANS = 8
# A smaller saving is not worth a change.
_LEAST_SHARE = 0.01
_FEWEST_AGENTS = 4
_FEWEST_COLUMNS = 8
_SMALLEST_BATCH = 16


Change = tuple[dict[str, int | str], bool]
"""Settings, by key as `--set` takes them, that may lower the memory of a run, and whether they keep its bits."""


@dataclass(frozen=True)
class Suggestion:
    """Settings (key and value, as `--set` takes them) that lower the peak of a run.

    `saved_bytes` is the reduction of the peaks that do not fit; with `same_result` the run's bits do not change.
    """

    settings: tuple[tuple[str, str], ...]
    saved_bytes: int
    fits: bool
    same_result: bool

    def __str__(self) -> str:
        """The suggestion as a phrase: "network.column_chunk=8 saves 1.90 GB and makes it fit"."""
        settings = " ".join(f"{key}={value}" for key, value in self.settings)
        return (
            f"{settings} save{'s' if len(self.settings) == 1 else ''} {size(self.saved_bytes)}"
            f"{' and makes it fit' if self.fits else ''}{' (the same run, bit for bit)' if self.same_result else ''}"
        )


def suggestions_for(config: Config, plan: Plan, plan_with: Callable[[Config], Plan | None]) -> list[Suggestion]:
    """Return settings that would make a run fit, or at least lower its memory; empty if it fits.

    Settings are tried one by one, from the smallest change of the run to the largest, until one makes it fit. If none
    does, all that help are combined.
    `plan_with` returns the plan of another configuration under the same limits; None if it is invalid.
    """
    if plan.fits:
        return []
    worth = _LEAST_SHARE * sum(verdict.peak_bytes for verdict in plan.verdicts if not verdict.fits)
    found: list[Suggestion] = []
    combined: dict[str, int | str] = {}
    for change in islice(_changes(config, plan), _MOST_PLANS):
        suggestion = _try(config, change, plan, plan_with)
        if suggestion is None:
            continue
        if suggestion.fits:
            return [suggestion]
        if suggestion.saved_bytes > worth:
            found.append(suggestion)
            # If a setting was tried with several values, its last value saves most.
            combined |= change[0]
    if len(combined) > 1:
        same_result = all(suggestion.same_result for suggestion in found)
        if (suggestion := _try(config, (combined, same_result), plan, plan_with)) is not None:
            found.append(suggestion)
    return found


def _try(config: Config, change: Change, plan: Plan, plan_with: Callable[[Config], Plan | None]) -> Suggestion | None:
    """Plan the run with a change; None if the changed configuration is invalid."""
    settings, same_result = change
    values = config.model_dump(mode="json")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        values = merge(values, {section: {name: value}})
    try:
        changed = Config(**values)
    except ValidationError:
        return None
    if (new := plan_with(changed)) is None:
        return None
    pairs = list(zip(plan.verdicts, new.verdicts, strict=True))
    saved = sum(max(before.peak_bytes - after.peak_bytes, 0) for before, after in pairs if not before.fits)
    return Suggestion(tuple((key, str(value)) for key, value in settings.items()), saved, new.fits, same_result)


def _changes(config: Config, plan: Plan) -> Iterator[Change]:
    """Yield the changes that are worth trying, from those that change the run least."""
    learner, agents = config.learner, config.population.size
    together = max(plan.measured.playing, plan.measured.learning) if isinstance(plan.measured, ProbeResult) else agents
    if together > 1:
        # The bits of an agent may depend on its group on a GPU.
        yield {"population.group_size": 1}, plan.device == "cpu"
    convolves = encoder_class(config.network).block_bound
    if convolves and config.network.column_chunk != _FEWEST_COLUMNS:
        yield {"network.column_chunk": _FEWEST_COLUMNS}, False
    capacity = config.replay.capacity // 2
    fewest = max(config.replay.minimum, plan.sizes.rows_per_generation, config.replay.capacity // 16 + 1)
    while capacity >= fewest:
        if capacity < plan.sizes.rows_stored or plan.device == "cuda":
            yield {"replay.capacity": capacity}, False
        capacity //= 2
    if isinstance(learner, BatchLearnerConfig) and learner.batch_size >= 2 * _SMALLEST_BATCH:
        smaller: dict[str, int | str] = {"learner.batch_size": learner.batch_size // 2}
        if isinstance(learner, BatchSamplingConfig):
            smaller["learner.accumulation_steps"] = 2 * learner.accumulation_steps
        yield smaller, False
    if convolves:
        yield {"network.encoder": "filter_bank"}, False
    if agents >= 2 * _FEWEST_AGENTS:
        yield {"population.size": agents // 2}, False
