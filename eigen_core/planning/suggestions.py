"""Settings that would make a run fit, found by planning the run with each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from eigen_core.config import Config, merge
from eigen_core.learners import learner_class
from eigen_core.needs import Change, Facts, Harm, Value, halves
from eigen_core.planning.plan import Limit, Plan, plan_of
from eigen_core.planning.scale import Scale
from eigen_core.units import size

_MOST_CHANGES = 6
# What saves less of the peak is not worth a change.
_LEAST_SHARE = 0.01
_FEWEST_AGENTS = 4


@dataclass(frozen=True)
class Suggestion:
    """Settings that lower the peak of a run.

    Attributes:
        settings: key and value of each, as `--set` takes them.
        saved_bytes: by how much the peak falls that does not fit (bytes).
        fits: whether the run fits then.
        same_result: whether the run stays the same, bit for bit.
    """

    settings: tuple[tuple[str, str], ...]
    saved_bytes: int
    fits: bool
    same_result: bool

    def __str__(self) -> str:
        """The suggestion as a phrase: "network.column_chunk=32 saves 1.90 GB and makes it fit"."""
        what = " ".join(f"{key}={value}" for key, value in self.settings)
        return (
            f"{what} save{'s' if len(self.settings) == 1 else ''} {size(self.saved_bytes)}"
            f"{' and makes it fit' if self.fits else ''}{' (the same run, bit for bit)' if self.same_result else ''}"
        )


def suggestions_for(
    config: Config, facts: Facts, plan: Plan, limits: Mapping[str, Limit], *, server: bool = True
) -> list[Suggestion]:
    """Return settings that would make a run fit that does not; nothing for one that does.

    Each setting is given once, with the mildest value that is enough. Where any is, only those are given: first what
    leaves the run as it is, then what changes least. Where none is, each is given with the value that saves most, and
    at last a combination: always one more of the settings that change least, that which saves most, until it fits or
    nothing helps.

    Args:
        config, facts, server: as for `plan_of`.
        plan: the plan that does not fit.
        limits: what there is.
    """
    if plan.fits:
        return []
    config = config.model_copy(update={"device": plan.device})
    tried = [_Tried.of(config, change, facts, plan, limits, server=server) for change in _changes(config, facts)]
    useful = _one_each([one for one in tried if one is not None and one.is_worth_it(plan)])
    enough = [one for one in useful if one.plan.fits]
    if enough:
        return [one.suggestion() for one in sorted(enough, key=lambda one: (one.harm, one.saved))]
    found = [one.suggestion() for one in sorted(useful, key=lambda one: (one.harm, -one.saved))]
    combined = _combined(config, facts, plan, limits, server=server)
    return found if combined is None or len(combined.settings) == 1 else [*found, combined.suggestion()]


def _one_each(useful: list["_Tried"]) -> list["_Tried"]:
    """Return of each setting the mildest value that is enough, else the one that saves most."""
    chosen: dict[tuple[str, ...], _Tried] = {}
    for one in useful:
        keys = tuple(one.settings)
        best = chosen.get(keys)
        if best is None or (not best.plan.fits and (one.plan.fits or one.saved > best.saved)):
            chosen[keys] = one
    return list(chosen.values())


@dataclass(frozen=True)
class _Tried:
    """A configuration that was planned: what was changed, and what that gave."""

    config: Config
    plan: Plan
    settings: Mapping[str, Value]
    saved: int
    harm: Harm

    @classmethod
    def of(
        cls,
        config: Config,
        change: Change,
        facts: Facts,
        plan: Plan,
        limits: Mapping[str, Limit],
        *,
        server: bool,
    ) -> "_Tried | None":
        """Plan `config` with a change; None if that is no valid configuration."""
        changed = _changed(config, change.settings)
        if changed is None:
            return None
        new = plan_of(changed, facts, device=plan.device, server=server, limits=limits)
        return cls(changed, new, change.settings, _missing(plan) - _missing(new) + _spare(plan, new), change.harm)

    def is_worth_it(self, plan: Plan) -> bool:
        """Whether it saves a share of what does not fit that is worth a change."""
        return self.saved > _LEAST_SHARE * sum(verdict.peak_bytes for verdict in plan.verdicts if not verdict.fits)

    def suggestion(self) -> Suggestion:
        settings = tuple((key, _spelled(value)) for key, value in self.settings.items())
        return Suggestion(settings, self.saved, self.plan.fits, self.harm is Harm.NONE)


def _missing(plan: Plan) -> int:
    return sum(verdict.missing_bytes for verdict in plan.verdicts)


def _spare(plan: Plan, new: Plan) -> int:
    """What a change saves beyond what was missing, where anything was."""
    pairs = zip(plan.verdicts, new.verdicts, strict=True)
    return sum(max(after.limit.bytes - after.peak_bytes, 0) for before, after in pairs if not before.fits)


def _combined(config: Config, facts: Facts, plan: Plan, limits: Mapping[str, Limit], *, server: bool) -> _Tried | None:
    """Take the mildest change, of those the one that saves most, again and again, until the run fits or none helps."""
    best: _Tried | None = None
    settings: dict[str, Value] = {}
    harm = Harm.NONE
    for _ in range(_MOST_CHANGES):
        here, planned = (config, plan) if best is None else (best.config, best.plan)
        tried = [_Tried.of(here, change, facts, planned, limits, server=server) for change in _changes(here, facts)]
        useful = [one for one in tried if one is not None and one.is_worth_it(planned)]
        if not useful:
            break
        step = min(useful, key=lambda one: (one.harm, -one.saved))
        settings |= step.settings
        harm = max(harm, step.harm)
        saved = _missing(plan) - _missing(step.plan) + _spare(plan, step.plan)
        best = _Tried(step.config, step.plan, dict(settings), saved, harm)
        if best.plan.fits:
            break
    return best


def _changes(config: Config, facts: Facts) -> Iterator[Change]:
    """Yield the changes that are worth trying, from those that change the run least."""
    size, scale = config.population.size, Scale.of(config, facts)
    for value in halves(scale.group, 1):
        # The bits of an agent may depend on its group there.
        yield Change({"population.group_size": value}, Harm.NONE if config.device == "cpu" else Harm.ROUNDING)
    yield from scale.task.changes()
    yield from learner_class(config.learner).changes(config)
    fewest = max(config.replay.minimum, scale.rows_per_generation)
    filled = max(scale.rows_stored, fewest)
    if filled < config.replay.capacity:
        yield Change({"replay.capacity": filled})
    for value in halves(filled, fewest, 3):
        yield Change({"replay.capacity": value})
    for value in halves(size, _FEWEST_AGENTS, 2):
        yield Change({"population.size": value})


def _changed(config: Config, settings: Mapping[str, Value]) -> Config | None:
    values = config.model_dump(mode="json")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        values = merge(values, {section: {name: value}})
    try:
        return Config(**values)
    except ValidationError:
        return None


def _spelled(value: Value) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
