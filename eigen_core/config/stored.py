"""Stored configurations: their format version, and migrations of those that earlier versions of Eigen stored."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from eigen_core.common.errors import InputError
from eigen_core.common.text import quoted
from eigen_core.config.explain import settings
from eigen_core.config.learning import VARIANTS, BreedingConfig, Variants
from eigen_core.config.loading import config_from_values
from eigen_core.config.machine_settings import belongs_to_run, values_where
from eigen_core.config.market import own_path
from eigen_core.config.model import Config, merge

FORMAT_KEY = "format_version"
"""Key of the format version; a stored configuration without it has version 1."""


Migration = Callable[[dict[str, Any]], None]


def _with_missing(defaults: Mapping[str, object]) -> Migration:
    """Return a migration that sets missing settings (dotted keys) to values that keep the earlier behaviour."""

    def migrate(values: dict[str, Any]) -> None:
        for key, value in defaults.items():
            section, name = _section_of(values, key)
            section.setdefault(name, value)

    return migrate


def _without(*keys: str) -> Migration:
    """Return a migration that drops settings which no longer exist."""

    def migrate(values: dict[str, Any]) -> None:
        for key in keys:
            section, name = _section_of(values, key)
            section.pop(name, None)

    return migrate


def _own_prices_of_version_7(values: dict[str, Any]) -> None:
    """Let headings determine the layout of prices that are not bundled, and keep suspicious rows, as version 7 did."""
    section, _ = _section_of(values, "market.data")
    data = section.get("data")
    if isinstance(data, str) and own_path(data) is not None:
        section.setdefault("layout", "wide")
        section.setdefault("suspicious", "keep")


def _portfolio_costs_of_version_8(values: dict[str, Any]) -> None:
    """Require a price of every symbol: versions up to 8 charged positions without one a part of the others' costs."""
    if values.get("task") == "portfolio":
        section, name = _section_of(values, "trading.delisting_loss")
        section[name] = None


def _flat_learner_of_version_10(values: dict[str, Any]) -> None:
    """Drop settings that the run's algorithm does not have: versions up to 10 stored those of all algorithms."""
    learner, _ = _section_of(values, "learner.algorithm")
    if learner.get("algorithm") == "ppo" and learner.get("gradient_steps") == 0:
        learner["epochs"] = 0
    if learner.get("policy_delay", 0) is None:
        learner["policy_delay"] = 2 if learner.get("algorithm") == "td3" else 1
    _drop_settings_of_others(learner, VARIANTS["learner"])


def _flat_evolution_of_version_12(values: dict[str, Any]) -> None:
    """Drop settings that the run's method does not have; choose `genetic`, which has `enabled`, if that is false."""
    evolution, _ = _section_of(values, "evolution.method")
    evolution.setdefault("method", "genetic")
    if evolution.get("enabled") is False:
        evolution["method"] = "genetic"
    _drop_settings_of_others(evolution, VARIANTS["evolution"])


def _drop_settings_of_others(section: dict[str, Any], variants: Variants) -> None:
    model = variants.model_for(section)
    known = {name for one in variants.models.values() for name in one.model_fields}
    for name in [name for name in section if model is not None and name in known - model.model_fields.keys()]:
        del section[name]


def _weights_evolve_in_version_14(values: dict[str, Any]) -> None:
    evolution, name = _section_of(values, "evolution.evolves")
    model = VARIANTS["evolution"].model_for(evolution)
    if model is not None and issubclass(model, BreedingConfig):
        evolution.setdefault(name, "weights")


def _linear_scales_of_version_15(values: dict[str, Any]) -> None:
    """Move the setting, which only counterfactual learning had, to the networks; others begin without a linear part."""
    learner, name = _section_of(values, "learner.linear_scales")
    network, _ = _section_of(values, "network.linear_scales")
    network.setdefault(name, learner.pop(name, []))


def _presets_of_version_16(values: dict[str, Any]) -> None:
    """Name `ddpg`, which has the settings that `quickstart` had; a preset `counterfactual`, now gone, extended them."""
    if values.get("preset", "quickstart") in ("quickstart", "counterfactual"):
        values["preset"] = "ddpg"


def _critic_of_the_fittest_in_version_17(values: dict[str, Any]) -> None:
    evolution, name = _section_of(values, "evolution.shared_critic")
    if evolution.get("method") == "cem":
        evolution.setdefault(name, "fittest")


def _intraday_of_version_18(values: dict[str, Any]) -> None:
    market, name = _section_of(values, "market.intraday")
    if market.pop(name, "refuse") == "aggregate":
        market.setdefault("bar", "1d")


_BARS_OF_VERSION_19 = {
    "trading.trading_days": "trading_bars",
    "trading.settlement_days": "settlement_bars",
    "trading.holding_days": "holding_bars",
    "trading.delisting_days": "delisting_bars",
    "trading.purchases_per_day": "purchases_per_bar",
    "market.validation_days": "validation",
    "market.holdout_days": "holdout",
    "market.purge_days": "purge",
    "learner.block_days": "block_bars",
    "learner.stretch_days": "stretch_bars",
    "replay.settlement_days": "settlement_bars",
}


def _bars_of_version_19(values: dict[str, Any]) -> None:
    for key, new in _BARS_OF_VERSION_19.items():
        section, name = _section_of(values, key)
        if name in section:
            section.setdefault(new, section.pop(name))


MIGRATIONS: tuple[Migration, ...] = (
    _with_missing({"trading.bookkeeping": "exact"}),
    # Version 3 stored a default delay as None; the migration of version 10 turns it back into a number.
    _without(),
    # Fitness came from episodes with noise, and validation alone chose the champion.
    _with_missing(
        {
            "evaluation.fitness_slices": 0,
            "evaluation.champion_validation_share": 1.0,
            "evaluation.champion_standard_errors": 0.0,
        }
    ),
    _with_missing({"replay.settlement_days": True}),
    _with_missing({"evolution.first_champion_plateau": True}),
    # No symbol may miss a day: positions could be sold while their symbol did not trade.
    _with_missing({"trading.delisting_loss": None}),
    _own_prices_of_version_7,
    _portfolio_costs_of_version_8,
    _without("evolution.islands", "evolution.migration_generations"),
    _flat_learner_of_version_10,
    _without("replay.compression"),
    _flat_evolution_of_version_12,
    _without("memory.trace"),
    _weights_evolve_in_version_14,
    _linear_scales_of_version_15,
    _presets_of_version_16,
    _critic_of_the_fittest_in_version_17,
    _intraday_of_version_18,
    _bars_of_version_19,
)
"""Migrations from format version 1 to 2, from 2 to 3, and so on. Whoever renames or removes a setting, or adds one with
a default that changes behaviour, adds a migration."""


def stored_values(config: Config) -> dict[str, JsonValue]:
    """Return all settings and their format version, ready for JSON."""
    return {FORMAT_KEY: len(MIGRATIONS) + 1, **config.model_dump(mode="json")}


def config_from_stored(stored: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration that this version of Eigen or an older one stored; `InputError` if it is invalid.

    A store is not trusted: of the nested values `stored`, only settings that it may give are read (`belongs_to_run`).
    `own` are nested values of `MACHINE_SETTINGS`; missing ones take their defaults.
    """
    # Settings of the other machine are dropped silently; unknown settings are refused below.
    values = values_where(current_values(stored), lambda key: belongs_to_run(key) or key not in settings())
    values = merge(values, {} if own is None else own)
    if values.get("scheduler") is not None:
        # The scheduler's workers replace the run's worker processes.
        values["workers"] = 0
    return config_from_values(values)


def current_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored values of a configuration as this version would store them, without the format version.

    `InputError` if a newer version of Eigen stored the values, or their format version is invalid.
    """
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in stored.items()}
    version = values.pop(FORMAT_KEY, 1)
    newest = len(MIGRATIONS) + 1
    if type(version) is not int or version < 1:
        raise InputError(f"{FORMAT_KEY}: {quoted(version)} is no format version of a configuration: restore its file.")
    if version > newest:
        raise InputError(
            f"The configuration was written by a newer version of Eigen (configuration format {quoted(version)}, this "
            f"version reads up to {newest}): upgrade Eigen."
        )
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(values)
    return values


def _section_of(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section of the setting `key`, created in `values` if missing, and the setting's name in it."""
    *names, last = key.split(".")
    for name in names:
        below = values.setdefault(name, {})
        # Validation after the migrations rejects a section that is not a dictionary.
        values = below if isinstance(below, dict) else {}
    return values, last
