"""Configurations as they are stored: with a version, so that later versions of Eigen can read them."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from eigen_core.common.errors import InputError
from eigen_core.common.text import shown
from eigen_core.config.learning import LEARNER_CONFIGS
from eigen_core.config.loading import config_from_values
from eigen_core.config.machine import run_values
from eigen_core.config.market import own_path
from eigen_core.config.model import Config
from eigen_core.config.presets import merge

FORMAT_KEY = "format_version"
"""Key of a stored configuration's version; without it the version is 1."""


def _bookkeeping_of_version_1(values: dict[str, Any]) -> None:
    section, name = _section_of(values, "trading.bookkeeping")
    section.setdefault(name, "exact")


def _policy_delay_of_version_2(values: dict[str, Any]) -> None:
    """Leave a learner's usual delay empty, as it is in a configuration that does not give one."""
    section, name = _section_of(values, "learner.policy_delay")
    if section.get(name) == (2 if section.get("algorithm") == "td3" else 1):
        section[name] = None


def _noisy_fitness_of_version_3(values: dict[str, Any]) -> None:
    """Keep the fitness of episodes with noise, and the champion by validation alone, where presets now give others."""
    before = {"fitness_slices": 0, "champion_validation_share": 1.0, "champion_standard_errors": 0.0}
    for setting, value in before.items():
        section, name = _section_of(values, f"evaluation.{setting}")
        section.setdefault(name, value)


def _settlement_of_version_4(values: dict[str, Any]) -> None:
    section, name = _section_of(values, "replay.settlement_days")
    section.setdefault(name, True)


def _plateau_of_version_5(values: dict[str, Any]) -> None:
    section, name = _section_of(values, "evolution.first_champion_plateau")
    section.setdefault(name, True)


def _fills_of_version_6(values: dict[str, Any]) -> None:
    """Go on only where every fill had a market: positions could be sold while their symbol did not trade."""
    section, name = _section_of(values, "trading.delisting_loss")
    section.setdefault(name, None)


def _own_prices_of_version_7(values: dict[str, Any]) -> None:
    """Read own prices as before layouts were named: headings decided, and suspicious rows were kept."""
    section, _ = _section_of(values, "market.data")
    data = section.get("data")
    if isinstance(data, str) and own_path(data) is not None:
        section.setdefault("layout", "wide")
        section.setdefault("suspicious", "keep")


def _portfolio_costs_of_version_8(values: dict[str, Any]) -> None:
    """Go on only where every symbol trades: positions that were not filled paid a part of the costs of the others."""
    if values.get("task") == "portfolio":
        section, name = _section_of(values, "trading.delisting_loss")
        section[name] = None


def _islands_of_version_9(values: dict[str, Any]) -> None:
    """Go on alone: populations that take each other's champions are no longer trained."""
    for name in ("islands", "migration_generations"):
        remove_setting(values, f"evolution.{name}")


def _flat_learner_of_version_10(values: dict[str, Any]) -> None:
    """Leave out what a learner never read: all learners had the settings of all algorithms."""
    learner, _ = _section_of(values, "learner.algorithm")
    algorithm = learner.get("algorithm")
    kind = LEARNER_CONFIGS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None:
        return
    if algorithm == "ppo" and learner.get("gradient_steps") == 0:
        learner["epochs"] = 0
    if learner.get("policy_delay", 0) is None:
        learner["policy_delay"] = 2 if algorithm == "td3" else 1
    known = {name for one in LEARNER_CONFIGS.values() for name in one.model_fields}
    for name in [name for name in learner if name in known and name not in kind.model_fields]:
        del learner[name]


def _compression_of_version_11(values: dict[str, Any]) -> None:
    """The replay is always compressed with zstd; shards that were stored in another way are read."""
    remove_setting(values, "replay.compression")


MIGRATIONS: tuple[Callable[[dict[str, Any]], None], ...] = (
    _bookkeeping_of_version_1,
    _policy_delay_of_version_2,
    _noisy_fitness_of_version_3,
    _settlement_of_version_4,
    _plateau_of_version_5,
    _fills_of_version_6,
    _own_prices_of_version_7,
    _portfolio_costs_of_version_8,
    _islands_of_version_9,
    _flat_learner_of_version_10,
    _compression_of_version_11,
)
"""Functions that turn stored values of version 1 into those of version 2, those of 2 into those of 3, and so on.

A change that renames or removes a setting, or adds one whose default is not what was done before, adds a migration.
"""


def stored_values(config: Config) -> dict[str, JsonValue]:
    """Return a configuration as it is stored: all settings, and the version of their format."""
    return {FORMAT_KEY: len(MIGRATIONS) + 1, **config.model_dump(mode="json")}


def config_from_stored(stored: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration that was stored by this version of Eigen or an older one.

    A store is foreign: of what it holds the settings of a run count, and not those that are this machine's own
    (`MACHINE_SETTINGS`).

    Args:
        stored: the values that a store holds.
        own: nested values that this machine gives for its own settings; those that it does not give are the defaults.

    Raises:
        InputError: a newer version stored it, or it cannot be used.
    """
    values = merge(run_values(current_values(stored)), {} if own is None else own)
    if values.get("scheduler") is not None:
        # The workers of this machine's scheduler take the place of those that the run was trained with.
        values["workers"] = 0
    return config_from_values(values)


def current_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored values as this version of Eigen names them, without the version of their format.

    Raises:
        InputError: a newer version stored them, or what should be a version is none.
    """
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in stored.items()}
    version = values.pop(FORMAT_KEY, 1)
    newest = len(MIGRATIONS) + 1
    if type(version) is not int or version < 1:
        raise InputError(f"{FORMAT_KEY}: {shown(version)} is no version of a configuration: restore that file.")
    if version > newest:
        raise InputError(
            f"It was written by a newer version of Eigen (configuration format {shown(version)}, this version reads "
            f"up to {newest}): upgrade Eigen."
        )
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(values)
    return values


def rename_setting(values: dict[str, Any], old: str, new: str) -> None:
    """Give the setting with the dotted key `old` the dotted key `new`, if it is there."""
    section, name = _section_of(values, old)
    if name in section:
        target, target_name = _section_of(values, new)
        target[target_name] = section.pop(name)


def remove_setting(values: dict[str, Any], key: str) -> None:
    """Remove the setting with a dotted key, if it is there."""
    section, name = _section_of(values, key)
    section.pop(name, None)


def _section_of(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section of a setting, which is made if it is missing, and the setting's name in it."""
    *names, last = key.split(".")
    for name in names:
        below = values.setdefault(name, {})
        # What is no section is refused once all migrations are done.
        values = below if isinstance(below, dict) else {}
    return values, last
