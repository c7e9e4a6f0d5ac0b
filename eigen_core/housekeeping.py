"""Housekeeping of the training runs of a store: remove old generations, verify files, export champions."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eigen_core.checkpoint.export import read_champion, write_champion
from eigen_core.checkpoint.integrity import CONFIG_NAME, Damage
from eigen_core.checkpoint.locks import InUseError
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import CleanReport, RunContents, RunLocation, no_such_run
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.session import take_lease
from eigen_core.common.errors import InputError
from eigen_core.config.model import CheckpointConfig
from eigen_core.config.stored import FORMAT_KEY, config_from_stored
from eigen_core.runs.evaluation_log import evaluation_log_damages
from eigen_core.runs.handle import Run, runs_in

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_NOTHING = CleanReport((), (), 0)


@dataclass(frozen=True)
class CleanedRun:
    """What `clean_runs` removed of a run, or would remove without `dry_run`.

    `stored`: removed from the store; `local`: from the run's folder on this machine, if the store is a bucket;
    `skipped`: why the run was not cleaned, None if it was.
    """

    run: str
    skipped: str | None
    stored: CleanReport = _NOTHING
    local: CleanReport = _NOTHING

    @property
    def bytes_freed(self) -> int:
        return self.stored.bytes_freed + self.local.bytes_freed


@dataclass(frozen=True)
class Verification:
    """The damages of a run in a store, and of the store's evaluation log (its list of all results of agents).

    `deep`: whether SHA-256 was checked; `generations`: those with an undamaged manifest (description of a checkpoint),
    ascending; `unreferenced_...`: number and size of the run's data files that none of these manifests names.
    """

    run: str
    deep: bool
    generations: tuple[int, ...]
    damages: tuple[Damage, ...]
    unreferenced_files: int
    unreferenced_bytes: int


def parse_duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{text}' is no duration: write a number and a unit, such as 90s, 30m, 12h or 7d.")
    return float(match[1]) * _SECONDS[match[2]]


def clean_runs(store: str, names: list[str] | None, grace_seconds: float, *, dry_run: bool) -> list[CleanedRun]:
    """Remove generations that the run's `checkpoint.keep_...` settings do not keep, and files that no manifest names.

    `names`: None: all runs; those in use or unreadable are skipped. Files that no manifest (description of a
    checkpoint) names stay while they are younger than `grace_seconds`: a process may be uploading their generation.
    `InputError` if a run in `names` does not exist, cannot be read or is in use.
    """
    cleaned = []
    for name in runs_in(store) if names is None else names:
        try:
            cleaned.append(_clean_run(Run.open(store, name), grace_seconds, dry_run=dry_run))
        except InputError as error:
            if names is not None:
                raise
            cleaned.append(CleanedRun(name, str(error)))
    return cleaned


def _clean_run(run: Run, grace_seconds: float, *, dry_run: bool) -> CleanedRun:
    location, settings = run.location, run.config.checkpoint
    keep, local, stored = (settings.keep_last, settings.keep_every), location.local, location.stored
    clean_local, clean_stored = (
        partial(contents.clean, grace_seconds=grace_seconds, dry_run=dry_run) for contents in (local, stored)
    )
    with ExitStack() as stack:
        confirm = None
        if dry_run:
            if run.is_running():
                raise InUseError(f"Run '{run.name}' is in use by another process: wait until it ends, or stop it.")
        else:
            # The lock and the lease keep other processes from writing to the run.
            if local.exists():
                stack.enter_context(RunDirectory.open(location.root, location.name).lock())
            if location.remote:
                confirm = stack.enter_context(take_lease(location, settings)).check
        if not location.remote:
            return CleanedRun(run.name, None, clean_local(*keep))
        # Listed before the store is cleaned: generations that are removed in the store are removed here too.
        here = {manifest.generation for manifest in local.manifests()}
        there = {manifest.generation for manifest in stored.manifests() if not stored.damages(manifest)}
        cleaned = clean_stored(*keep, confirm=confirm)
        return CleanedRun(
            run.name, None, cleaned, clean_local(settings.keep_local, 0, keep_champion=False, protected=here - there)
        )


def verify_run(store: str, name: str, *, deep: bool) -> Verification:
    """Check presence and sizes of a run's files in its store, with `deep` their SHA-256, and the evaluation log."""
    # Not by `Run.open`, which needs an undamaged configuration.
    location = RunLocation.of(CheckpointConfig(store=store), name)
    contents = location.stored
    if not contents.exists():
        raise no_such_run(location.store, location.name)
    damages = contents.verify(deep=deep)
    manifests = contents.manifests()
    unreferenced = contents.unreferenced()
    rules, unusable = _keep_rules(contents, manifests)
    damages += unusable
    if rules:
        damages += contents.missing_generations(rules)
    damages += evaluation_log_damages(location.store)
    if deep:
        damages += _ledger_damages(location, contents)
    return Verification(
        name,
        deep,
        tuple(sorted({manifest.generation for manifest in manifests})),
        tuple(damages),
        len(unreferenced),
        sum(stored.bytes for stored in unreferenced),
    )


def _ledger_damages(location: RunLocation, contents: RunContents) -> list[Damage]:
    # Imported here because it loads what plays a market, which other checks do without.
    from eigen_core.judging.act import LEDGER_NAME, read_ledger

    begun = contents.first_config()
    try:
        read_ledger(location.root / location.name / LEDGER_NAME, isinstance(begun, dict) and begun.get(FORMAT_KEY, 1))
    except InputError as error:
        return [Damage(None, LEDGER_NAME, f"cannot be used: {error}", LEDGER_NAME)]
    return []


def _keep_rules(contents: RunContents, manifests: Sequence[Manifest]) -> tuple[list[CheckpointConfig], list[Damage]]:
    """Return the checkpoint settings in a run's configuration and manifests, and damages for those that are invalid."""
    begun = contents.first_config()
    stored = [(manifest.generation, manifest.name, manifest.config) for manifest in manifests]
    rules: list[CheckpointConfig] = []
    damages: dict[str, Damage] = {}
    for generation, path, values in stored if isinstance(begun, Damage) else [(None, CONFIG_NAME, begun), *stored]:
        try:
            rules.append(config_from_stored(values).checkpoint)
        except InputError as error:
            damages.setdefault(str(error), Damage(generation, "configuration", f"cannot be used: {error}", path))
    return rules, list(damages.values())


def export_champion(store: str, name: str, path: Path) -> str:
    """Write a run's newest undamaged champion and its configuration to a safetensors file; return a sentence on it."""
    run = Run.open(store, name)
    newest = run.newest
    contents = run.location.stored if newest is None else newest[0]
    manifest = write_champion(contents, path)
    champion = read_champion(path)
    return (
        f"{path} holds the champion of run '{name}', found in generation {manifest.champion_generation}: "
        f"{champion.weights.numel():,} weights and the configuration."
    )
