"""`Config`, the model of all settings of a run, and the presets: YAML files that override defaults."""

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from eigen_core.common.process import Instructions
from eigen_core.common.text import quoted
from eigen_core.config.learning import (
    VARIANTS,
    AnyEvolutionConfig,
    AnyLearnerConfig,
    DdpgConfig,
    EvaluationConfig,
    ExplorationConfig,
    GeneticConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    Variants,
    known_return_weight,
)
from eigen_core.config.machine_settings import secrets_in
from eigen_core.config.market import EnvironmentConfig, MarketConfig, TradingConfig
from eigen_core.config.registry import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    TaskName,
    Text,
    TrackerName,
    has_prices,
)

Rate = Annotated[float, Field(gt=-1.0, le=10.0)]
_SHARES, _MOST_SHARES = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?", re.ASCII), 1e12


class AccountConfig(Section):
    """The account of a backtest, in money. Training does not depend on it."""

    capital: Positive = 100_000.0
    """Cash before the first day (money)."""
    start: Annotated[tuple[Text, ...], Field(max_length=10_000, fail_fast=True, strict=False)] = ()
    """Shares that the account holds besides, such as `AAPL 10`, at the close of its first day. Returns refer to their
    value at this close and the capital together. With task `market` they are sold after `trading.holding_bars`, without
    a sale target; numbers below 0 are short sales, which only `portfolio.short` allows."""
    sizing: Literal["coefficient", "equal", "fixed"] = "coefficient"
    """Size of a new position, costs included; at most the cash at its fill. `equal`: the share 1 / (decisions in
    `trading.holding_bars` x `trading.purchases_per_bar`) of the equity at the close of the decision's day, so that the
    sum of all positions stays within the equity; `coefficient`: this times coefficient / `trading.max_coefficient`, or
    just this if that is empty; `fixed`: `account.fixed_amount`."""
    fixed_amount: Positive = 5_000.0
    """Size of a new position with `fixed` sizing (money)."""
    shares: Literal["fractional", "whole"] = "fractional"
    """Whether fractions of a share can be bought."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Largest order, as a share of the mean volume of the symbol's last 20 bars with a volume, up to the decision's.
    The rest of an order lapses; a sale of the task `market` is not limited. Empty: orders of any size are filled."""
    impact: NonNegative = 0.0
    """Price impact of orders, a coefficient: a market order of n shares moves its price against itself by impact x
    volatility x sqrt(n / volume), as a fraction, with mean volume and volatility of the same bars. 0: none."""
    interest: Rate = 0.0
    """Yearly interest on cash (a fraction), accrued by calendar time."""
    periods_per_year: Count | None = None
    """Trading days a year for annualised metrics. Empty: as many as the data have in a year on average."""
    risk_free: Rate = 0.0
    """Yearly risk-free return (a fraction), by calendar time; the Sharpe ratio uses returns in excess of it."""

    @property
    def holdings(self) -> dict[str, float]:
        """The numbers of shares in `start` by symbol."""
        return {symbol: float(number) for symbol, _, number in (text.rpartition(" ") for text in self.start)}

    @field_validator("start")
    @classmethod
    def _start_is_shares(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        symbols = set[str]()
        for text in texts:
            symbol, _, number = text.rpartition(" ")
            if not symbol.strip() or not _SHARES.fullmatch(number) or not 0.0 < abs(float(number)) <= _MOST_SHARES:
                raise ValueError(
                    f"account.start: {quoted(text)} is no holding: write a symbol and a number of shares, as in AAPL 10"
                )
            if symbol in symbols:
                raise ValueError(f"account.start has {quoted(symbol)} twice: give each symbol once")
            symbols.add(symbol)
        return texts


class PortfolioConfig(Section):
    """Weights of assets and cash in the task `portfolio`."""

    short: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Bound of all short positions together, as a share of the equity; that of long ones is 1 more than this. The
    account borrows what short sales do not pay for. 0: long positions only, at most all of the equity, and no
    borrowing."""
    max_score: Annotated[float, Field(gt=0.0, le=20.0)] = 5.0
    """Bound of an asset's score; the score of cash is 0. With long positions only, the ratio of two weights is the
    exponential of the difference of their scores."""
    initial_speed: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Speed of an untrained agent: the share of the way to the score that it wants for an asset, by which the asset's
    score moves in a day. A low speed keeps turnover low before agents have learned."""


class CheckpointConfig(Section):
    """The store of checkpoints, how many are kept, and uploads."""

    store: Text = "runs"
    """Store of runs: a folder, or a URL such as gs://bucket/prefix."""
    keep_last: Count = 3
    """Number of newest generations whose checkpoints are kept."""
    keep_every: CountOrZero = 5
    """Checkpoints of generations whose number is a multiple of this are kept permanently; 0: none."""
    local: Text = "runs"
    """Folder on this machine for generations that are being uploaded to a remote store."""
    keep_local: Count = 2
    """Number of newest generations that also stay on this machine if the store is remote."""
    queue_generations: Count = 8
    """Generations that may wait for upload; training pauses before there are more."""
    queue_mb: Positive = 8_192.0
    """Data that may wait for upload (MB); training pauses at this."""
    upload_mb_per_second: NonNegative = 50.0
    """Rate limit of uploads, so that they do not slow training down (MB/s); 0: no limit."""
    finish_seconds: Annotated[float, Field(gt=0.0, le=1e6)] = 900.0
    """Longest time that a finished run waits for its last upload, before it ends with an error (seconds)."""
    lease_seconds: Annotated[float, Field(ge=10, le=1e6)] = 90.0
    """Time after which another machine may take a lease (the right to write to a run) that is not renewed (seconds)."""


class MemoryConfig(Section):
    """Memory limits of a run, and when the memory guard, which measures its memory all the time, warns and stops it."""

    limit_gb: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Limit of the run's main memory, in addition to the machine's limits (GB); empty: no further limit."""
    soft: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Share of any memory limit at which the memory guard frees caches and warns."""
    hard: Annotated[float, Field(gt=0, lt=1)] = 0.93
    """Share of any memory limit at which the memory guard ends the run with an error; the last checkpoint is valid."""
    sample_seconds: Annotated[float, Field(ge=0.001, le=60)] = 0.2
    """Interval of memory measurements (seconds)."""

    @model_validator(mode="after")
    def _soft_comes_first(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"memory.soft {self.soft} must be below memory.hard {self.hard}, to warn before it aborts")
        return self


class ReportingConfig(Section):
    """Plots and experiment trackers."""

    plot_every: CountOrZero = 5
    """Interval of plots (generations); the last generation always has plots. 0: only the last."""
    trackers: Annotated[tuple[TrackerName, ...], Field(max_length=100, strict=False)] = ()
    """Experiment trackers that receive the metrics of each generation after its checkpoint; each needs the extra of the
    same name, for example `pip install 'eigen-trader[tensorboard]'`."""
    tensorboard_folder: Text | None = None
    """Folder for TensorBoard's event files, with one folder per run. Empty: `tensorboard` in the run's folder."""
    mlflow_uri: Text | None = None
    """MLflow's server or database, for example `http://host:5000`. Empty: MLFLOW_TRACKING_URI if it is set, otherwise
    `mlflow.db` next to the runs on this machine."""
    mlflow_experiment: Text = "eigen"
    """MLflow experiment of the runs, created if it is missing."""


_PRESETS = files("eigen_core.config") / "presets"

PRESET_NAMES: tuple[str, ...] = tuple(sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir()))


def preset_values(name: str) -> dict[str, Any]:
    """Return the settings that preset `name` (one of `PRESET_NAMES`) overrides, as nested dictionaries."""
    return {"preset": name, **deepcopy(_overrides(name))}


def preset_space(name: str) -> tuple[str, ...]:
    """Return the `KEY=VALUES` that `eigen sweep` varies with preset `name` where it is given none; empty: nothing."""
    return tuple(_file_of(name).get("vary", ()))


@cache
def _overrides(name: str) -> dict[str, Any]:
    # Cached: the form in Prefect's pages asks for each setting of each preset.
    values = {key: value for key, value in _file_of(name).items() if key not in ("extends", "vary")}
    base = _file_of(name).get("extends")
    return values if base is None else merge(_overrides(base), values)


def _file_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return values


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested settings `base`, updated by those of `override` section by section.

    If `override` changes `learner.algorithm` or `evolution.method`, settings of `base` that the new algorithm or
    method does not have are dropped.
    """
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(_shared_settings(below, value, VARIANTS[key]) if key in VARIANTS else below, value)
        else:
            merged[key] = value
    return merged


def _shared_settings(base: Mapping[str, Any], override: Mapping[str, Any], variants: Variants) -> Mapping[str, Any]:
    model = variants.model_for(override)
    if model is None or override[variants.key] == base.get(variants.key):
        return base
    return {name: value for name, value in base.items() if name in model.model_fields}


class Config(Section):
    """All settings of a run. Missing values come from the preset, then from the defaults."""

    preset: Text = "quickstart"
    """Preset that gives all values that are not set; `eigen presets` lists the presets."""
    task: TaskName = "market"
    """Task of the agents: `market`, to buy assets for up to `trading.holding_bars` days; `portfolio`, to choose the
    weights of all assets every day; or a Gymnasium environment, `gym:` and its id or `gym:module:Class`. Only the first
    two use the sections market and trading."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of every random draw of the run."""
    generations: Count = 25
    """Generations to train."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the computation; `auto` uses a GPU if there is one."""
    cuda_graphs: bool = True
    """Whether to capture a gradient step, and one day of all episodes together, as CUDA graphs: the same bits in as
    little as a quarter of the time. No effect on a CPU."""
    threads: Annotated[int, Field(ge=0, le=1_024)] = 0
    """CPU threads of torch; 0: all cores of this process or one, whichever computes the first gradient steps faster."""
    workers: Annotated[int, Field(ge=0, le=1_024)] | Literal["auto"] = 0
    """Worker processes on this machine that compute the agents, one thread each; 0: the run's own process computes
    them; `auto`: one per CPU core, at most one per agent; with several GPUs one per GPU, with one GPU none."""
    scheduler: Text | None = None
    """Address of a Dask scheduler whose workers compute the agents, for example `tcp://host:8786`. Empty: none."""
    instructions: Instructions = "auto"
    """CPU instructions: `auto` uses all of the CPU; with `avx2`, all CPUs of one manufacturer with AVX2 or AVX-512
    give the same bits, in up to 1.2 times the time."""
    market: MarketConfig = MarketConfig()
    trading: TradingConfig = TradingConfig()
    portfolio: PortfolioConfig = PortfolioConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    network: NetworkConfig = NetworkConfig()
    population: PopulationConfig = PopulationConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: Annotated[AnyLearnerConfig, Field(discriminator="algorithm")] = DdpgConfig()
    evolution: Annotated[AnyEvolutionConfig, Field(discriminator="method")] = GeneticConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    account: AccountConfig = AccountConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    memory: MemoryConfig = MemoryConfig()
    reporting: ReportingConfig = ReportingConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic passes any value
        if not isinstance(values, dict):
            return values
        # First, because other errors quote values.
        plain = {key: value.model_dump() if isinstance(value, Section) else value for key, value in values.items()}
        for sentence in secrets_in(plain):
            raise ValueError(sentence)
        preset = values.get("preset", cls.model_fields["preset"].default)
        merged = merge(preset_values(preset), values) if preset in PRESET_NAMES else dict(values)
        for section, variants in VARIANTS.items():
            if isinstance(merged.get(section), Mapping):
                default = getattr(cls.model_fields[section].default, variants.key)
                merged[section] = {variants.key: default, **merged[section]}
        return merged

    @field_validator("preset")
    @classmethod
    def _preset_exists(cls, preset: str) -> str:
        if preset not in PRESET_NAMES:
            raise ValueError(f"there is no preset {quoted(preset)}: use one of {', '.join(PRESET_NAMES)}")
        return preset

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.scheduler is not None and self.workers != 0:
            raise ValueError(
                f"scheduler {self.scheduler} has its own workers, and workers is {self.workers}: give only one of these"
            )
        if self.trading.decide_every is not None and self.task != "market":
            raise ValueError(
                f"trading.decide_every is a rule of task market, and the task is {self.task}: leave it out"
            )
        if not has_prices(self.task):
            if self.network.linear_scales:
                raise ValueError(
                    f"network.linear_scales reads features of assets, and task {self.task} has none: set it to []"
                )
            if known_return_weight(self.learner):
                raise ValueError(
                    f"learner.known_return_weight needs returns of assets, and task {self.task} has none: set it to 0"
                )
            return self
        if self.task == "portfolio" and self.trading.settlement_bars < 2:
            raise ValueError(
                f"trading.settlement_bars {self.trading.settlement_bars} is too few for the task portfolio: its last "
                "decision is filled on the first settlement day and judged at the fill prices of the second: use 2"
            )
        sold = [symbol for symbol, shares in self.account.holdings.items() if shares < 0.0]
        if sold and not (self.task == "portfolio" and self.portfolio.short):
            raise ValueError(
                f"account.start: {quoted(sold[0])} is sold short, which only task portfolio with portfolio.short "
                "allows: give a number of shares above 0"
            )
        if self.exploration.random_steps and self.trading.max_coefficient is None:
            raise ValueError(
                f"exploration.random_steps {self.exploration.random_steps} draws actions uniformly from their range, "
                "and trading.max_coefficient is empty, no bound: give a bound, or set random_steps to 0"
            )
        if self.replay.actions == "float16" and self.trading.max_coefficient is None:
            raise ValueError(
                "replay.actions float16 holds numbers up to 65,504, and trading.max_coefficient is empty, no bound: "
                "give a bound, or choose float32"
            )
        filters = self.network.scales if self.network.encoder == "filter_bank" else ()
        averages = self.network.linear_scales
        for name, what, scales in (("scales", "a filter", filters), ("linear_scales", "an average", averages)):
            if too_long := [scale for scale in scales if scale > self.market.window]:
                raise ValueError(
                    f"network.{name} has {too_long[0]} days but market.window is {self.market.window}: "
                    f"{what} may not reach further back than the window"
                )
        for name, bars in (("validation", self.market.validation), ("holdout", self.market.holdout or None)):
            # How many bars a duration has depends on the prices.
            if isinstance(bars, int):
                self.require_episode(name, bars)
        return self

    def require_episode(self, name: str, bars: int) -> None:
        """Raise ValueError if an episode does not fit into the `bars` bars of `market.validation` or `market.holdout`.

        `name`: `validation` or `holdout`.
        """
        if bars < self.trading.episode_bars:
            raise ValueError(
                f"market.{name} is {bars:,} bars, shorter than an episode of {self.trading.episode_bars:,} "
                "(trading.trading_bars and trading.settlement_bars): raise it or shorten these"
                + (", or set it to 0" if name == "holdout" else "")
            )

    @property
    def has_holdout(self) -> bool:
        """Whether the champion plays holdout episodes at the end of the run; with prices if there are holdout days."""
        return not has_prices(self.task) or self.market.holdout != 0
