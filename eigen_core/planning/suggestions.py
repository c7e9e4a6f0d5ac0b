"""Settings that would make a run fit, found by planning the run with each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from eigen_core.config import Config, merge
from eigen_core.planning.facts import PanelFacts
from eigen_core.planning.plan import Limit, Plan, plan_of

_MOST_CHANGES = 6

Value = int | str | tuple[int, ...]


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
        saved = f"{self.saved_bytes / 1e9:,.2f} GB" if self.saved_bytes >= 1e9 else f"{self.saved_bytes / 1e6:,.0f} MB"
        return (
            f"{what} save{'s' if len(self.settings) == 1 else ''} {saved}"
            f"{' and makes it fit' if self.fits else ''}{' (the same run, bit for bit)' if self.same_result else ''}"
        )


@dataclass(frozen=True)
class _Change:
    settings: Mapping[str, Value]
    same_result: bool = False


def suggestions_for(
    config: Config, panel: PanelFacts, plan: Plan, limits: Mapping[str, Limit], *, server: bool = True
) -> list[Suggestion]:
    """Return settings that would make a run fit that does not; nothing for one that does.

    Each setting is given once, with the mildest value that is enough. Where any is, only those are given: first what
    leaves the run as it is, then what changes least. Where none is, each is given with the value that saves most, and
    at last a combination: always the setting that saves most on top, until it fits or nothing helps.

    Args:
        config, panel, server: as for `plan_of`.
        plan: the plan that does not fit.
        limits: what there is.
    """
    if plan.fits:
        return []
    tried = [_Tried.of(config, change, panel, plan, limits, server=server) for change in _changes(config, panel)]
    useful = _one_each([one for one in tried if one is not None and one.saved > 0])
    enough = [one for one in useful if one.plan.fits]
    if enough:
        return [one.suggestion() for one in sorted(enough, key=lambda one: (not one.same, one.saved))]
    found = [one.suggestion() for one in sorted(useful, key=lambda one: -one.saved)]
    combined = _combined(config, panel, plan, limits, server=server)
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
    same: bool

    @classmethod
    def of(
        cls,
        config: Config,
        change: _Change,
        panel: PanelFacts,
        plan: Plan,
        limits: Mapping[str, Limit],
        *,
        server: bool,
    ) -> "_Tried | None":
        """Plan `config` with a change; None if that is no valid configuration."""
        changed = _changed(config, change.settings)
        if changed is None:
            return None
        new = plan_of(changed, panel, device=plan.device, server=server, limits=limits)
        return cls(
            changed, new, change.settings, _missing(plan) - _missing(new) + _spare(plan, new), change.same_result
        )

    def suggestion(self) -> Suggestion:
        settings = tuple((key, _spelled(value)) for key, value in self.settings.items())
        return Suggestion(settings, self.saved, self.plan.fits, self.same)


def _missing(plan: Plan) -> int:
    return sum(verdict.missing_bytes for verdict in plan.verdicts)


def _spare(plan: Plan, new: Plan) -> int:
    """What a change saves beyond what was missing, where anything was."""
    pairs = zip(plan.verdicts, new.verdicts, strict=True)
    return sum(max(after.limit.bytes - after.peak_bytes, 0) for before, after in pairs if not before.fits)


def _combined(
    config: Config, panel: PanelFacts, plan: Plan, limits: Mapping[str, Limit], *, server: bool
) -> _Tried | None:
    """Take the change that saves most, again and again, until the run fits or nothing helps."""
    best: _Tried | None = None
    settings: dict[str, Value] = {}
    same = True
    for _ in range(_MOST_CHANGES):
        here, planned = (config, plan) if best is None else (best.config, best.plan)
        found = [_Tried.of(here, change, panel, planned, limits, server=server) for change in _changes(here, panel)]
        step = max((tried for tried in found if tried is not None), key=lambda tried: tried.saved, default=None)
        if step is None or step.saved <= 0:
            break
        settings |= step.settings
        same = same and step.same
        saved = _missing(plan) - _missing(step.plan) + _spare(plan, step.plan)
        best = _Tried(step.config, step.plan, dict(settings), saved, same)
        if best.plan.fits:
            break
    return best


def _changes(config: Config, panel: PanelFacts) -> Iterator[_Change]:
    """Yield the changes that are worth trying, from those that change the run least."""
    size, group = config.population.size, config.population.group_size or config.population.size
    for value in _halves(min(group, size), 1):
        yield _Change({"population.group_size": value}, same_result=True)
    network, learner = config.network, config.learner
    train_days = panel.train_days(config)
    if network.encoder == "tcn":
        columns = min(network.column_chunk or panel.columns, panel.columns)
        for value in _powers_below(columns, 4):
            yield _Change({"network.column_chunk": value})
        block = min(learner.block_days or train_days, train_days)
        for value in _halves(block, learner.batch_size + 1, 2):
            yield _Change({"learner.block_days": value})
    for value in _halves(learner.batch_size, 4, 2):
        steps = learner.accumulation_steps * learner.batch_size // value
        yield _Change({"learner.batch_size": value, "learner.accumulation_steps": steps})
    for value in _halves(config.replay.capacity, config.replay.minimum, 3):
        yield _Change({"replay.capacity": value})
    if network.encoder == "filter_bank" and len(network.scales) > 1:
        yield _Change({"network.scales": network.scales[:-1]})
    if network.encoder == "tcn":
        yield _Change({"network.encoder": "filter_bank"})
    for value in _halves(size, 2, 2):
        yield _Change({"population.size": value})


def _halves(value: int, least: int, times: int = 16) -> Iterator[int]:
    """Yield halves of a value, rounded up, as long as they are at least `least`, at most so many times."""
    for _ in range(times):
        half = (value + 1) // 2
        if half < least or half == value:
            return
        value = half
        yield value


def _powers_below(value: int, least: int) -> Iterator[int]:
    """Yield the powers of two below a value, falling, as long as they are at least `least`."""
    power = 1 << (value - 1).bit_length()
    while (power := power // 2) >= least:
        if power < value:
            yield power


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
