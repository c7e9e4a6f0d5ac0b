"""Which settings are a run's, so that a store or a flow run's parameters may give them, and which are this machine's.

A store, a bucket and the parameters of a flow run are foreign: they never choose what is imported, connected to, or
written outside the run. Each setting is in one of two tables; a setting that is added is a word in one of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eigen_core.common.text import has_credentials

_LONGEST_NAME = 60
_LEVELS = 8


@dataclass(frozen=True)
class MachineSetting:
    """A setting that a command line or the environment of this machine gives, and nothing else.

    Attributes:
        variable: the environment variable that gives it to all runs of this machine.
        reason: why a store may not choose it.
        secret: where a password for it belongs: environment variables, which nothing keeps.
    """

    variable: str
    reason: str
    secret: str = ""


MACHINE_SETTINGS: Mapping[str, MachineSetting] = {
    "scheduler": MachineSetting(
        "EIGEN_SCHEDULER",
        "what listens at that address can run code in this process",
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY and its like, certificates of Dask",
    ),
    "checkpoint.store": MachineSetting(
        "EIGEN_STORE", "it is written to; a store does not know where it is", "GOOGLE_APPLICATION_CREDENTIALS"
    ),
    "checkpoint.local": MachineSetting("EIGEN_LOCAL", "it is written to, outside of the run"),
    "reporting.trackers": MachineSetting("EIGEN_TRACKERS", "they write outside of the run, or connect to a server"),
    "reporting.tensorboard_folder": MachineSetting("EIGEN_TENSORBOARD_FOLDER", "it is written to, outside of the run"),
    "reporting.mlflow_uri": MachineSetting(
        "MLFLOW_TRACKING_URI",
        "it is connected to, and is sent all metrics",
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or all of it in MLFLOW_TRACKING_URI",
    ),
    "reporting.mlflow_experiment": MachineSetting("MLFLOW_EXPERIMENT_NAME", "it is written to, beside other runs"),
}
"""This machine's own settings, by dotted key."""

_OF_A_RUN = {
    "": "preset task seed generations device cuda_graphs threads workers instructions",
    "market": (
        "data layout symbols symbol_from date_format decimal suspicious context features own_features look_ahead "
        "intraday time_zone window validation_days holdout_days purge_days first_date last_date"
    ),
    "market.columns": "date time symbol open high low close volume adjusted_close",
    "trading": (
        "trading_days settlement_days holding_days buy_threshold purchases_per_day rank max_coefficient "
        "min_target max_target fill credit bookkeeping cost_bps slippage_bps loss_multiplier idle_penalty "
        "no_trade_penalty observe_portfolio delisting_days delisting_loss"
    ),
    "portfolio": "short max_score initial_speed",
    "environment": "episode_steps normalise_observations normalise_rewards",
    "network": "encoder scales channels embedding queries head_width head_layers column_chunk precision",
    "population": "size group_size",
    "exploration": "scale decay minimum random_steps",
    "replay": "capacity minimum actions settlement_days",
    "learner": (
        "algorithm gradient_steps batch_size accumulation_steps block_days gamma n_step tau "
        "actor_learning_rate critic_learning_rate weight_decay gradient_clip reward_scale reward_clip "
        "twin_critics policy_delay target_noise target_noise_clip initial_temperature "
        "temperature_learning_rate entropy_target target_bins epochs clip_range value_clip gae_lambda "
        "entropy_coefficient initial_log_std anneal kl_limit stretch_days stretches risk_aversion"
    ),
    "evolution": (
        "method enabled elite_share offspring_share tournament_size blend_low blend_high mutation_rate "
        "mutation_std plateau_generations plateau_improvement mutation_growth mutation_rate_limit "
        "mutation_std_limit first_champion_plateau reinject_champion learning_agents sync_generations exploit_share "
        "perturbation distribution_variance distribution_variance_limit distribution_variance_decay"
    ),
    "evaluation": (
        "slices lowest fitness_slices shared_slices validation_slices validation_lowest "
        "champion_validation_share champion_standard_errors holdout_slices"
    ),
    "account": "capital sizing fixed_amount shares interest periods_per_year risk_free",
    "checkpoint": (
        "keep_last keep_every keep_local queue_generations queue_mb upload_mb_per_second finish_seconds lease_seconds"
    ),
    "memory": "limit_gb soft hard sample_seconds trace",
    "reporting": "plot_every",
}
RUN_SETTINGS = frozenset(
    f"{section}.{name}".lstrip(".") for section, names in _OF_A_RUN.items() for name in names.split()
)
"""Settings of a run, by dotted key. They are numbers, truth values, words of a list, and these texts:

`task`: a registered environment; a module is imported only where this machine names it
(`eigen_core.training.runs.require_named`).
`market.data`: a file that is read, never a URL; the panel's fingerprint says whether it is the run's. From a store
elsewhere it is not taken at all (`eigen_core.training.runs.config_to_resume`).
`market.context`, `market.columns`, `market.symbols`, `market.symbol_from`, `market.date_format`, `market.time_zone`:
names that are looked up in the data and in its files' names, and in the time zones.
`market.own_features`: functions that packages installed here have registered for Eigen.
"""

TASK_VARIABLE = "EIGEN_TASK"
"""Environment variable that names a task of a module, `gym:module:Class`, which a stored run may then import."""


def secrets_in(values: Mapping[str, Any], levels: int = _LEVELS) -> Iterator[str]:
    """Yield, in a sentence, which of nested values have a password in them; the sentence has none.

    Values below so many levels are no settings, and not looked at.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            if levels:
                yield from secrets_in({f"{name}.{key}": inner for key, inner in value.items()}, levels - 1)
        elif any(
            has_credentials(text)
            for text in (value if isinstance(value, list | tuple) else [value])
            if text and isinstance(text, str)
        ):
            known = MACHINE_SETTINGS.get(name)
            where = f"set {known.secret} in the environment instead" if known and known.secret else "leave that out"
            yield (
                f"{str(name)[:_LONGEST_NAME]} has a user or a password in it, and settings are kept in the store, in "
                f"pages and in reports: {where}"
            )


def names_module(task: object) -> bool:
    """Whether a task, `gym:module:Class` or `gym:module:Name-v0`, imports a module."""
    return isinstance(task, str) and ":" in task.partition(":")[2]


def run_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values of settings without those that are this machine's own."""
    return _sections(values, lambda key: key not in MACHINE_SETTINGS)


def machine_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of nested values that are this machine's own, the task too where it imports a module."""
    own = _sections(values, lambda key: key in MACHINE_SETTINGS)
    return {"task": values["task"], **own} if names_module(values.get("task")) else own


def _sections(values: Mapping[str, Any], belongs: Callable[[str], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in MACHINE_SETTINGS:
            if kept := {key: inner for key, inner in value.items() if belongs(f"{name}.{key}")}:
                found[name] = kept
        elif belongs(name):
            found[name] = value
    return found
