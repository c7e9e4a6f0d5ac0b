"""Settings of networks, learners, replay, evaluation and evolution."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from eigen_core.config.values import (
    Count,
    CountOrZero,
    EncoderName,
    Fraction,
    LearnerName,
    MethodName,
    NonNegative,
    Positive,
    Rows,
    Section,
    Width,
)


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
    """Columns that `tcn` encodes at a time, and again in the backward pass; changes memory, speed and rounding. 0: as
    many as a processor's cache holds of a block of days."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What matrix products of weights are computed with, forward and backward. `bfloat16` rounds both factors and the
    product to 8 bits of precision, gradients of weights included; the sums inside a product, weights, moments and all
    else stay in float32. For GPUs; a processor takes longer."""


class PopulationConfig(Section):
    """The agents."""

    size: Annotated[int, Field(ge=2, le=4_096)] = 16
    """Agents in the population."""
    group_size: Annotated[int, Field(ge=0, le=4_096)] = 0
    """Agents computed at a time; on a CPU that changes speed and memory, never a bit. 0: on a CPU as many as fit into a
    processor's cache, two at least; on a GPU as many as keep each block of values below a gigabyte."""


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
    actions: Literal["float32", "float16"] = "float32"
    """How the tasks of prices store actions. `float16` takes half the bytes, and rounds them by less than 0.05 %."""
    settlement_days: bool = False
    """The task `market` stores the days of settlement too, on which nothing is decided. Else an episode's last decision
    is terminal, and what is booked after it is added to its reward."""

    @model_validator(mode="after")
    def _capacity_holds_minimum(self) -> Self:
        if self.capacity < self.minimum:
            raise ValueError(
                f"replay.capacity {self.capacity:,} is below replay.minimum {self.minimum:,}: "
                "learning would never start"
            )
        return self


class LearnerConfig(Section):
    """How each agent learns. Each algorithm has the settings that it reads; these are those of all algorithms."""

    algorithm: LearnerName
    """Update rule. `ddpg`: deep deterministic policy gradient; `td3`: with two critics, a delayed policy and smoothed
    targets; `sac`: soft actor-critic, a stochastic policy with two critics and a learned temperature; `ppo`: proximal
    policy optimization, from the generation's own episodes alone; `counterfactual`: regression on what every asset
    would have gained on every training day at every sale target, played or not; `direct`: the growth of the account
    itself, which the task `portfolio` offers."""
    critic_learning_rate: NonNegative = 3e-4
    """Step size of the critic and the encoder; with `counterfactual` of all weights."""
    weight_decay: NonNegative = 1e-5
    """Decoupled weight decay, times the learning rate."""
    gradient_clip: Positive = 1.0
    """Bound on the norm of each agent's gradient, actor and critic apart."""

    @property
    def learns(self) -> bool:
        """Whether agents learn by gradients; else evolution alone changes them."""
        raise NotImplementedError


class BatchLearnerConfig(LearnerConfig):
    """Settings of algorithms that learn from batches of rewards."""

    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Transitions in a batch; of the market, all of different days except with PPO."""
    reward_scale: Positive = 0.02
    """Rewards are multiplied by this before learning."""
    reward_clip: Positive | None = None
    """Scaled rewards are clipped to plus or minus this before learning; empty: never."""


class BatchSamplingConfig(BatchLearnerConfig):
    """Settings of algorithms that sample batches, of any age or day."""

    gradient_steps: CountOrZero = 32
    """Optimizer steps per agent and generation; 0: evolution alone."""
    accumulation_steps: Count = 1
    """Batches whose gradients are averaged for one optimizer step."""
    block_days: CountOrZero = 1_000
    """Days that `tcn` encodes at once to learn from; a batch is drawn from one random block. 0: the whole training
    range."""

    @property
    def learns(self) -> bool:
        """See `LearnerConfig.learns`."""
        return self.gradient_steps > 0


class ActorCriticConfig(BatchLearnerConfig):
    """Settings of algorithms that learn an actor by a critic of what follows."""

    actor_learning_rate: NonNegative = 1e-4
    """Step size of the actor."""
    gamma: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount of the next day's value."""


class OffPolicyConfig(BatchSamplingConfig, ActorCriticConfig):
    """Settings of actor-critic algorithms that learn from the shared replay buffer, with target networks."""

    n_step: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Steps whose rewards are added up before the value of what is observed then is trusted, at most: an episode's end
    comes first. The later ones are as they were played."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Share of the weights that moves into the targets at each optimizer step."""


class DdpgConfig(OffPolicyConfig):
    """Settings of `ddpg`."""

    algorithm: Literal["ddpg"] = "ddpg"
    """Deep deterministic policy gradient."""
    policy_delay: Count = 1
    """The actor and the targets move once in this many critic steps, counted over generations. TD3's default is 2."""
    twin_critics: bool = False
    """Learn two critics and trust the lower, as TD3 and SAC always do."""


class Td3Config(OffPolicyConfig):
    """Settings of `td3`."""

    algorithm: Literal["td3"] = "td3"
    """Twin delayed DDPG: two critics, a delayed policy and smoothed targets."""
    policy_delay: Count = 2
    """The actor and the targets move once in this many critic steps, counted over generations."""
    target_noise: Fraction = 0.1
    """Standard deviation of the noise on the target actor's actions, as a fraction of an action's range."""
    target_noise_clip: Fraction = 0.25
    """That noise is clipped to plus or minus this, as a fraction of an action's range."""


class SacConfig(OffPolicyConfig):
    """Settings of `sac`."""

    algorithm: Literal["sac"] = "sac"
    """Soft actor-critic: a stochastic policy with two critics and a learned temperature."""
    initial_temperature: Positive = 1.0
    """Weight of the entropy beside scaled rewards before it is learned."""
    temperature_learning_rate: NonNegative = 3e-4
    """Step size of the temperature's logarithm."""
    entropy_target: Annotated[float, Field(ge=-100.0, le=100.0)] = -1.0
    """Entropy of each value of an action that the temperature is learned for, the value's range scaled to [-1, 1]
    (nats)."""


class PpoConfig(ActorCriticConfig):
    """Settings of `ppo`."""

    algorithm: Literal["ppo"] = "ppo"
    """Proximal policy optimization, from the generation's own episodes alone."""
    epochs: CountOrZero = 10
    """Passes over the episodes of a generation; 0: evolution alone."""
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """How far the ratio of new to old probabilities is used from 1."""
    value_clip: Positive | None = None
    """How far values are used from those before learning, in scaled rewards; empty: any distance."""
    gae_lambda: Fraction = 0.95
    """Decay of later temporal-difference errors in an advantage (generalised advantage estimation)."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the actor's objective."""
    initial_log_std: Annotated[float, Field(ge=-20.0, le=2.0)] = 0.0
    """Logarithm of the policy's standard deviation at the start, before actions are squashed to their range."""
    anneal: bool = False
    """Learning rates fall linearly to zero over `generations`."""
    kl_limit: Positive | None = None
    """An agent whose policy diverges more than this from the one that played stops learning in the generation (nats);
    empty: only where the divergence is not finite."""

    @property
    def learns(self) -> bool:
        """See `LearnerConfig.learns`."""
        return self.epochs > 0


class CounterfactualConfig(BatchSamplingConfig):
    """Settings of `counterfactual`."""

    algorithm: Literal["counterfactual"] = "counterfactual"
    """Regression on what every asset would have gained on every training day at every sale target, played or not."""
    target_bins: Annotated[int, Field(ge=1, le=100)] = 4
    """Sale targets of which outcomes are learned, evenly spread from `trading.min_target` to `trading.max_target`."""


class DirectConfig(LearnerConfig):
    """Settings of `direct`."""

    algorithm: Literal["direct"] = "direct"
    """The growth of the account itself, which the task `portfolio` offers."""
    actor_learning_rate: NonNegative = 1e-4
    """Step size of the actor."""
    gradient_steps: CountOrZero = 32
    """Optimizer steps per agent and generation; 0: evolution alone."""
    stretch_days: Count = 400
    """Training days of a stretch over which the growth of an account is climbed, at most all there are (days)."""
    stretches: Count = 1
    """Stretches whose gradients are averaged for one optimizer step."""
    risk_aversion: NonNegative = 0.0
    """What is climbed is the mean of a day's rewards less this times their variance."""

    @property
    def learns(self) -> bool:
        """See `LearnerConfig.learns`."""
        return self.gradient_steps > 0


AnyLearnerConfig = DdpgConfig | Td3Config | SacConfig | PpoConfig | CounterfactualConfig | DirectConfig

LEARNER_CONFIGS: Mapping[str, type[LearnerConfig]] = {
    kind.model_fields["algorithm"].default: kind for kind in get_args(AnyLearnerConfig)
}
"""The settings of each algorithm, by its name."""


def batch_size_of(learner: LearnerConfig) -> int:
    """Return the transitions of a batch; for an algorithm without batches the default of the others."""
    size: int = getattr(learner, "batch_size", BatchLearnerConfig.model_fields["batch_size"].default)
    return size


def block_days_of(learner: LearnerConfig) -> int:
    """Return the days of a block; for an algorithm without blocks the default of the others."""
    days: int = getattr(learner, "block_days", BatchSamplingConfig.model_fields["block_days"].default)
    return days


class EvaluationConfig(Section):
    """How agents are judged."""

    slices: Count = 5
    """Training episodes of each agent in a generation."""
    lowest: Count = 2
    """Fitness is the mean of this many worst episodes, which luck moves less than one episode; not with
    `fitness_slices`."""
    fitness_slices: CountOrZero = 0
    """Fitness is the mean of this many further training episodes without exploration noise, evenly spread and the same
    for all agents and generations; 0: of the `lowest` episodes with noise."""
    shared_slices: bool = True
    """All agents of a generation trade the same episodes; false: each its own."""
    validation_slices: Count = 3
    """Validation episodes of each agent, evenly spread and the same in every generation."""
    validation_lowest: Count = 2
    """Validation fitness is the mean of this many worst validation episodes."""
    champion_validation_share: Fraction = 1.0
    """The champion's score is this share of the validation fitness and the rest of the fitness, less
    `champion_standard_errors`."""
    champion_standard_errors: NonNegative = 0.0
    """Standard errors that are taken off: the score is then a lower confidence bound. The error is that of the mean
    over the episodes, overlaps taken into account; a single episode counts as having none."""
    holdout_slices: Count | None = None
    """Holdout episodes of the champion and of each random agent beside it, evenly spread; empty: as many as validation
    episodes."""

    @property
    def fixed_episodes(self) -> int:
        """Episodes of an agent in a generation that are the same in all: those of fitness and validation."""
        return self.fitness_slices + self.validation_slices

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

    @model_validator(mode="after")
    def _score_is_known(self) -> Self:
        if self.champion_validation_share < 1.0 and not self.fitness_slices:
            raise ValueError(
                f"evaluation.champion_validation_share {self.champion_validation_share:g} needs a fitness that "
                "compares agents of different generations: set evaluation.fitness_slices"
            )
        return self


class EvolutionConfig(Section):
    """What becomes of the population at the end of a generation."""

    method: MethodName = "genetic"
    """Population method. `genetic`: elites, crossover and mutation over agents that all learn; `cem`: actors drawn
    from a distribution that the fittest of them move, some of which learn; `erl`: the genetic algorithm beside agents
    that learn, which are copied into it; `pbt`: all learn, each with its own learning rates, discount, reward scale and
    noise, and the weakest copy the fittest and perturb these."""
    enabled: bool = True
    """Breed at the end of each generation; false: gradients alone."""
    elite_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the population that survives unchanged; with CEM, that moves the distribution."""
    offspring_share: Fraction = 0.375
    """Share that is bred from two parents; what is left are mutants."""
    tournament_size: Count = 3
    """Agents drawn for a parent's tournament; the fittest wins."""
    blend_low: Fraction = 0.3
    """Lower bound of the share of the first parent in a child's weights."""
    blend_high: Fraction = 0.7
    """Upper bound of it."""
    mutation_rate: Fraction = 0.1
    """Share of a mutant's weights that are changed."""
    mutation_std: NonNegative = 0.01
    """Standard deviation of the change."""
    plateau_generations: Count = 3
    """Generations without progress after which mutation grows."""
    plateau_improvement: NonNegative = 0.02
    """Relative improvement of the champion's score that counts as progress."""
    first_champion_plateau: bool = False
    """Whether a champion of the first generation makes a plateau, although nothing was learned or bred before it.
    False: until it is surpassed, progress is that of the agents' median fitness. True in runs begun before this
    setting."""
    mutation_growth: Annotated[float, Field(ge=1.0, le=1e9)] = 1.5
    """Factor on mutation rate and standard deviation on a plateau."""
    mutation_rate_limit: Fraction = 0.4
    """Bound of the grown rate."""
    mutation_std_limit: NonNegative = 0.05
    """Bound of the grown standard deviation."""
    reinject_champion: bool = True
    """The champion replaces the weakest elite unless it is an elite itself."""
    learning_agents: CountOrZero | None = None
    """Agents that learn by gradients, CEM and ERL; empty: with CEM half of all but one, with ERL one
    agent."""
    sync_generations: Count = 10
    """Generations after which an agent that learns is copied into the population, ERL; or the weakest copy the fittest,
    PBT."""
    exploit_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.2
    """Share of the population that copies as large a share of the fittest; PBT."""
    perturbation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2
    """Copied learning rates, 1 - gamma, reward scale and noise are multiplied by 1 plus or minus this; PBT."""
    distribution_variance: NonNegative = 1e-3
    """Variance of each of an actor's weights at the start, and what is added to it after the first generations; CEM."""
    distribution_variance_limit: NonNegative = 1e-5
    """What is added to it after many; CEM."""
    distribution_variance_decay: Fraction = 0.95
    """Factor on the difference between the two for each generation; CEM."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.elite_share + self.offspring_share > 1.0:
            raise ValueError(
                f"evolution.elite_share {self.elite_share:g} and evolution.offspring_share {self.offspring_share:g} "
                "add up to more than 1: lower one of them"
            )
        if self.blend_low > self.blend_high:
            raise ValueError(
                f"evolution.blend_low {self.blend_low:g} is above evolution.blend_high {self.blend_high:g}: swap them"
            )
        for setting, start, limit in (
            ("mutation_rate", self.mutation_rate, self.mutation_rate_limit),
            ("mutation_std", self.mutation_std, self.mutation_std_limit),
        ):
            if start > limit:
                raise ValueError(f"evolution.{setting} {start:g} is above evolution.{setting}_limit {limit:g}")
        return self
