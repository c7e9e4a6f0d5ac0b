"""The sections of the configuration: every setting with its unit, meaning, bounds and default."""

import zoneinfo
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eigen_core.config.choices import EncoderName, LearnerName, TrackerName
from eigen_core.config.plain import shown
from eigen_core.config.values import (
    Count,
    CountOrZero,
    Date,
    Fraction,
    NonNegative,
    Positive,
    Rows,
    Section,
    Text,
    Width,
)


class MarketConfig(Section):
    """Which prices, which features, which days."""

    data: Text | None = None
    """Price file or folder: a long CSV/Parquet, a wide CSV of closes, or a folder with one file a symbol; or `us5`, the
    bundled bars of five US stocks, 2000-2013. Empty: the bundled 20 S&P 500 stocks, 1990-2022."""
    context: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Symbols that agents observe but cannot trade (an index, a rate)."""
    features: Literal["returns", "classic", "columns"] = "returns"
    """Feature set: `returns` is free of the price level; `classic` is the nine price-level features of the replaced
    system; `columns` are the numeric columns that the data has beside prices, alone."""
    own_features: Annotated[tuple[Text, ...], Field(max_length=1_000, fail_fast=True, strict=False)] = ()
    """Features beside that set: `columns`, and names of functions that are registered as entry points of the group
    `eigen.features`."""
    look_ahead: Literal["refuse", "allow"] = "refuse"
    """Where values of such a function change with later days: `refuse` trains nothing, `allow` trains with them."""
    intraday: Literal["refuse", "aggregate"] = "refuse"
    """Bars within a day: refused, or days are formed of them from midnight to midnight on the exchange's clock (first
    open, highest high, lowest low, last close, summed volume)."""
    time_zone: Text | None = None
    """The exchange's time zone, as `America/New_York`, for bars within a day whose stamps have a time zone. Empty: days
    are those of the stamps' own clock, unless that is UTC."""
    window: Annotated[int, Field(ge=1, le=5_000)] = 64
    """Days that an agent observes, today included (days)."""
    validation_days: Count = 252
    """Days kept for choosing the champion (days)."""
    holdout_days: CountOrZero = 251
    """Last days of the data, used once, at the end (days)."""
    purge_days: CountOrZero = 0
    """Days left out between training and validation, and between validation and holdout, if there is one (days)."""
    first_date: Date | None = None
    """Prices before this date are left out, as if the data began with it; empty: none."""
    last_date: Date | None = None
    """Prices after this date are left out, as if the data ended with it; empty: none."""

    @model_validator(mode="after")
    def _dates_are_ordered(self) -> Self:
        if self.first_date is not None and self.last_date is not None and self.first_date > self.last_date:
            raise ValueError(
                f"market.first_date {self.first_date} is after market.last_date {self.last_date}: swap them"
            )
        return self

    @property
    def days_after_training(self) -> int:
        """Days of validation, of holdout, and those left out before each of them."""
        purged = self.purge_days * (2 if self.holdout_days else 1)
        return self.validation_days + self.holdout_days + purged

    @model_validator(mode="after")
    def _time_zone_is_known(self) -> Self:
        try:
            zoneinfo.ZoneInfo(self.time_zone or "UTC")
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"market.time_zone {shown(self.time_zone)} is no time zone: name one like America/New_York, or UTC"
            ) from error
        return self


class TradingConfig(Section):
    """The rules of an episode and the reward."""

    trading_days: Count = 125
    """Days of an episode on which positions may be opened (days)."""
    settlement_days: CountOrZero = 20
    """Days after them on which positions may only close (days)."""
    holding_days: Count = 20
    """A position closes at the latest this many days after its decision (days)."""
    buy_threshold: NonNegative = 1.0
    """The asset with the highest coefficient is bought if its coefficient reaches this."""
    max_coefficient: Positive | None = 3.0
    """Bound of the coefficient, which is a position's size; empty: unbounded (the classic rule)."""
    min_target: Positive = 0.10
    """Smallest sale target, as a fraction of the fill price."""
    max_target: Positive = 0.50
    """Largest sale target, as a fraction of the fill price."""
    fill: Literal["next_open", "next_close", "same_close"] = "next_open"
    """Price of an order: the next day's open (its close where there is no open), its close, or the close of the
    decision's day (the classic rule, at which no order can be filled any more)."""
    credit: Literal["decision", "realized", "marked"] = "decision"
    """Day to which a trade's reward is booked: the decision's, the closing's (the classic rule), or day by day as the
    position is marked to market."""
    bookkeeping: Literal["exact", "classic"] = "exact"
    """`exact`: only assets with a price are chosen, a position without a price on its last day closes at the last known
    one, a gain of zero is no win, a day that ends without a position is idle. `classic`, the replaced system's: the
    choice of an asset without a price buys nothing, a position closes at its entry price on the first day without any
    price or on its last day without a close, a gain of zero is a win, a day on which a position closes is not idle."""
    cost_bps: NonNegative = 5.0
    """Transaction cost of each side of a trade (basis points of its value)."""
    slippage_bps: NonNegative = 2.0
    """Slippage of each order at the market: the entry and a sale at the close, not a sale at the target (basis
    points)."""
    loss_multiplier: Positive = 10.0
    """Losses count this many times in the reward."""
    idle_penalty: NonNegative = 2.0
    """Taken from the reward for each day that ends without any position (reward)."""
    no_trade_penalty: NonNegative = 10_000.0
    """Taken from the reward of an episode without a trade, on its last day (reward)."""
    observe_portfolio: bool = True
    """Agents observe their portfolio (held, days held, unrealised gain, coefficient) and the time in the episode."""

    @property
    def episode_days(self) -> int:
        """Days of an episode: trading and settlement."""
        return self.trading_days + self.settlement_days

    @model_validator(mode="after")
    def _targets_are_ordered(self) -> Self:
        if self.min_target > self.max_target:
            raise ValueError(
                f"trading.min_target {self.min_target:g} is above trading.max_target {self.max_target:g}: swap them"
            )
        if self.settlement_days < self.holding_days:
            raise ValueError(
                f"trading.settlement_days {self.settlement_days} is shorter than trading.holding_days "
                f"{self.holding_days}: the last positions could not close inside their episode"
            )
        if self.max_coefficient is not None and self.max_coefficient < self.buy_threshold:
            raise ValueError(
                f"trading.max_coefficient {self.max_coefficient:g} is below trading.buy_threshold "
                f"{self.buy_threshold:g}: no agent could ever buy"
            )
        return self


class EnvironmentConfig(Section):
    """A Gymnasium environment that is played: the tasks `gym:...`."""

    episode_steps: Count | None = None
    """Most steps of an episode; empty: the limit that the environment is registered with."""
    normalise_observations: bool = False
    """Observations are normalised by the mean and the variance of all that the population has observed in training;
    updated once a generation."""
    normalise_rewards: bool = False
    """Rewards are divided by the standard deviation of all discounted returns before learning, then multiplied by
    `learner.reward_scale`; updated once a generation."""


class NetworkConfig(Section):
    """The networks of an agent: encoder, pooling over columns, heads."""

    encoder: EncoderName = "filter_bank"
    """`filter_bank`: a fixed bank of causal linear filters and a small MLP (fast); `tcn`: learned dilated causal
    convolutions."""
    scales: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1_000, fail_fast=True, strict=False)] = (
        1,
        5,
        20,
        60,
    )
    """Lengths of the filter bank's moving averages (days); each at most `market.window`."""
    channels: Width = 32
    """Width of the encoder's hidden layers."""
    embedding: Width = 16
    """Values that the encoder gives per column and day."""
    queries: Width = 4
    """Learned queries that pool all columns into the market context."""
    head_width: Width = 32
    """Width of the hidden layers of actor and critic."""
    head_layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Hidden layers of actor and critic where observations are vectors (`gym:...`); the market's have their own."""
    column_chunk: CountOrZero = 0
    """Columns encoded at a time, recomputed in the backward pass; bounds the memory of `tcn`. 0: all at once."""


class PopulationConfig(Section):
    """The agents."""

    size: Annotated[int, Field(ge=2, le=4_096)] = 16
    """Agents in the population."""
    group_size: Annotated[int, Field(ge=0, le=4_096)] = 0
    """Agents computed at a time; changes speed and memory, never a bit. 0: all (best on a GPU, and for small ones)."""


class ExplorationConfig(Section):
    """Gaussian noise on the actions of training episodes."""

    scale: Fraction = 0.1
    """Initial standard deviation, as a fraction of an action's range."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9999
    """Factor on the scale for each step (of the market: day) of an agent's training episodes at their full length."""
    minimum: Fraction = 0.01
    """The scale never falls below this."""
    random_steps: CountOrZero = 0
    """A generation that begins with fewer transitions recorded than this, by all agents, plays its training episodes
    with actions drawn uniformly from their range; fitness is then the validation fitness. Not with PPO."""


class ReplayConfig(Section):
    """The buffer of transitions that all agents share."""

    capacity: Rows = 50_000
    """Transitions kept; the oldest are overwritten."""
    minimum: Rows = 10_000
    """Learning starts once this many transitions are stored."""
    compression: Literal["none", "gzip", "zstd"] = "zstd"
    """How the replay's shards are stored; all three can be read, whatever is chosen here."""

    @model_validator(mode="after")
    def _capacity_holds_minimum(self) -> Self:
        if self.capacity < self.minimum:
            raise ValueError(
                f"replay.capacity {self.capacity:,} is below replay.minimum {self.minimum:,}: "
                "learning would never start"
            )
        return self


class LearnerConfig(Section):
    """How each agent learns from the shared replay."""

    algorithm: LearnerName = "ddpg"
    """Update rule. `ddpg`: deep deterministic policy gradient; `td3`: with two critics, a delayed policy and smoothed
    targets; `sac`: soft actor-critic, a stochastic policy with two critics and a learned temperature; `ppo`: proximal
    policy optimization, from the generation's own episodes alone."""
    gradient_steps: CountOrZero = 32
    """Optimizer steps per agent and generation; 0: evolution alone. PPO takes as many as `epochs` and `batch_size`
    say."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Transitions in a batch; of the market, all of different days except with PPO."""
    accumulation_steps: Count = 1
    """Batches whose gradients are averaged for one optimizer step."""
    block_days: CountOrZero = 1_000
    """Days that `tcn` encodes at once to learn from; a batch is drawn from one random block. 0: the whole training
    range."""
    gamma: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount of the next day's value."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Share of the weights that moves into the targets at each optimizer step."""
    actor_learning_rate: NonNegative = 1e-4
    """Step size of the actor."""
    critic_learning_rate: NonNegative = 3e-4
    """Step size of the critic and the encoder."""
    weight_decay: NonNegative = 1e-5
    """Decoupled weight decay, times the learning rate."""
    gradient_clip: Positive = 1.0
    """Bound on the norm of each agent's gradient, actor and critic apart."""
    reward_scale: Positive = 0.02
    """Rewards are multiplied by this before learning."""
    reward_clip: Positive | None = None
    """Scaled rewards are clipped to plus or minus this before learning; empty: never."""
    twin_critics: bool = False
    """DDPG learns two critics and trusts the lower, as TD3 and SAC always do."""
    policy_delay: Count | None = None
    """The actor and the targets move once in this many critic steps, counted over generations; empty: 1 with DDPG, 2
    with TD3; the others have none."""
    target_noise: Fraction = 0.1
    """Standard deviation of the noise on the target actor's actions, as a fraction of an action's range; TD3."""
    target_noise_clip: Fraction = 0.25
    """That noise is clipped to plus or minus this, as a fraction of an action's range; TD3."""
    initial_temperature: Positive = 1.0
    """Weight of the entropy beside scaled rewards before it is learned; SAC."""
    temperature_learning_rate: NonNegative = 3e-4
    """Step size of the temperature's logarithm; SAC."""
    entropy_target: Annotated[float, Field(ge=-100.0, le=100.0)] = -1.0
    """Entropy of each value of an action that the temperature is learned for, the value's range scaled to [-1, 1]
    (nats); SAC."""

    epochs: Count = 10
    """Passes over the episodes of a generation; PPO."""
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """How far the ratio of new to old probabilities is used from 1; PPO."""
    value_clip: Positive | None = None
    """How far values are used from those before learning, in scaled rewards; empty: any distance; PPO."""
    gae_lambda: Fraction = 0.95
    """Decay of later temporal-difference errors in an advantage (generalised advantage estimation); PPO."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the actor's objective; PPO."""
    initial_log_std: Annotated[float, Field(ge=-20.0, le=2.0)] = 0.0
    """Logarithm of the policy's standard deviation at the start, before actions are squashed to their range; PPO."""
    anneal: bool = False
    """Learning rates fall linearly to zero over `generations`; PPO."""
    kl_limit: Positive | None = None
    """An agent whose policy diverges more than this from the one that played stops learning in the generation (nats);
    empty: only where the divergence is not finite; PPO."""


class EvaluationConfig(Section):
    """How agents are judged."""

    slices: Count = 5
    """Training episodes of each agent in a generation."""
    lowest: Count = 2
    """Fitness is the mean of this many worst episodes, which luck moves less than one episode."""
    shared_slices: bool = True
    """All agents of a generation trade the same episodes; false: each its own."""
    validation_slices: Count = 3
    """Validation episodes of each agent, evenly spread and the same in every generation."""
    validation_lowest: Count = 2
    """Validation fitness is the mean of this many worst validation episodes."""
    holdout_slices: Count | None = None
    """Holdout episodes of the champion and of each random agent beside it, evenly spread; empty: as many as validation
    episodes."""

    @property
    def holdout_episodes(self) -> int:
        """Holdout episodes of an agent."""
        return self.holdout_slices or self.validation_slices

    @model_validator(mode="after")
    def _lowest_fits(self) -> Self:
        for kind, lowest, slices in (
            ("", self.lowest, self.slices),
            ("validation_", self.validation_lowest, self.validation_slices),
        ):
            if lowest > slices:
                raise ValueError(
                    f"evaluation.{kind}lowest {lowest} is above evaluation.{kind}slices {slices}: "
                    "there are not that many episodes to choose from"
                )
        return self


class CheckpointConfig(Section):
    """Where generations are kept, and which."""

    store: Text = "runs"
    """Where runs are kept: a folder, or a URL such as gs://bucket/prefix."""
    keep_last: Count = 3
    """Newest generations kept."""
    keep_every: CountOrZero = 5
    """Every so many generations one is kept for good; 0: none."""
    local: Text = "runs"
    """Folder on this machine for what is being uploaded to a store elsewhere."""
    keep_local: Count = 2
    """Newest generations that also stay on this machine when the store is elsewhere."""
    queue_generations: Count = 8
    """Generations that may wait for upload; training waits when more would."""
    queue_mb: Positive = 8_192.0
    """Most that may wait for upload (MB)."""
    upload_mb_per_second: NonNegative = 50.0
    """Rate that uploads keep below, so that they take no time from training (MB/s); 0: no limit."""
    finish_seconds: Annotated[float, Field(gt=0.0, le=1e6)] = 900.0
    """How long a run's end waits for the last upload (seconds)."""
    lease_seconds: Annotated[float, Field(ge=10, le=1e6)] = 90.0
    """Time after which a run whose process does not renew its lease may be taken over by another machine (seconds)."""


class MemoryConfig(Section):
    """How much memory a run may take, and when it stops by itself."""

    limit_gb: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Most that the run may take on the host, if less than the machine allows (GB); null: no limit of its own."""
    soft: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Share of the limit at which caches are freed and a warning is written."""
    hard: Annotated[float, Field(gt=0, lt=1)] = 0.93
    """Share of the limit at which the phase under way is aborted; the last checkpoint stays good."""
    sample_seconds: Annotated[float, Field(ge=0.001, le=60)] = 0.2
    """Time between two measurements of the memory (seconds)."""
    trace: bool = False
    """Record where Python allocates, for the report of a guard that aborted; costs time and memory."""

    @model_validator(mode="after")
    def _soft_comes_first(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"memory.soft {self.soft} is not below memory.hard {self.hard}: nothing would warn")
        return self


class ReportingConfig(Section):
    """What is shown, and how often."""

    plot_every: CountOrZero = 5
    """Generations between two pages of plots; the last generation always has one. 0: only the last."""
    trackers: Annotated[tuple[TrackerName, ...], Field(max_length=100, strict=False)] = ()
    """Experiment trackers that also receive the metrics of each generation after its checkpoint; each needs the extra
    of its name, for example `pip install eigen[tensorboard]`."""
    tensorboard_folder: Text | None = None
    """Folder in which each run has a folder of event files for TensorBoard. Empty: `tensorboard` in the run's own."""
    mlflow_uri: Text | None = None
    """MLflow's server or database, for example `http://host:5000`. Empty: MLFLOW_TRACKING_URI if it is set, else
    `mlflow.db` beside the runs on this machine."""
    mlflow_experiment: Text = "eigen"
    """Experiment in MLflow that holds the runs; it is made if it is missing."""
