"""Sections of `Config`: networks, population, exploration, replay, learners, evaluation and evolution."""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from eigen_core.config.registry import (
    LEARNERS,
    METHODS,
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

Scales = Annotated[tuple[Count, ...], Field(min_length=1, max_length=1_000, fail_fast=True, strict=False)]


class NetworkConfig(Section):
    """The networks of an agent: an encoder of each symbol, pooling over all symbols, heads of actor and critic."""

    encoder: EncoderName = "filter_bank"
    """Encoder of a symbol's features on the last `market.window` days. `filter_bank`: a fixed bank of causal linear
    filters and a small MLP (fast); `tcn`: learned dilated causal convolutions."""
    scales: Scales = (1, 5, 20, 60)
    """Lengths of the filter bank's moving averages (bars); each at most `market.window`."""
    linear_scales: Annotated[tuple[Count, ...], Field(max_length=100, fail_fast=True, strict=False)] = ()
    """Lengths of the features' moving averages (bars), each at most `market.window`, that a ridge regression may read:
    the first, or all if these clearly predict better in cross-validation on the training days. Agents begin by
    following its score of each asset, and add the output of their network; with `learner.algorithm` counterfactual a
    share of the output, which learns differences between assets alone: the last fifth of the training days, from which
    it does not learn, decides the share. Empty: the network alone acts. Only for tasks with prices."""
    linear_degree: Annotated[int, Field(ge=1, le=2)] = 1
    """With 2 the regression may also read the products of each two of at most 40 features (averages over the first of
    `linear_scales`), squares included, if these clearly predict better and the averages do not even more so."""
    linear_standardised: bool = False
    """Whether the regression, and what counterfactual learning adds to it, fits gains in standard deviations of their
    day, so that days on which prices move more do not count more. Where an edge is a correlation, gains grow with the
    moves (Grinold 1994, "Alpha is volatility times IC times score"), and rare days of large ones blur it."""
    channels: Width = 32
    """Width of the encoder's hidden layers."""
    embedding: Width = 16
    """Width of the encoder's output per symbol and day."""
    queries: Width = 4
    """Number of learned attention queries, each of which pools the encoder's outputs for all symbols into a vector."""
    head_width: Width = 32
    """Width of the hidden layers in the heads of actor and critic."""
    head_layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of hidden layers of actor and critic for vector observations (`gym:...`)."""
    column_chunk: CountOrZero = 0
    """Symbols that `tcn` encodes at a time; the number changes memory, speed and rounding. 0: Eigen chooses it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products with weights. `bfloat16` rounds factors, products and gradients of weights to 8 bits
    of precision; sums and all stored values stay in float32. For GPUs; a CPU takes longer."""


class PopulationConfig(Section):
    """Sizes of the population and of the groups in which its agents are computed."""

    size: Annotated[int, Field(ge=2, le=4_096)] = 16
    """Agents in the population."""
    group_size: Annotated[int, Field(ge=0, le=4_096)] = 0
    """Agents computed at a time; on a CPU the results have the same bits with any number. 0: on a CPU as many as fit
    its cache, at least two when they learn; on a GPU as many as keep intermediate tensors below about a gigabyte."""


class ExplorationConfig(Section):
    """Gaussian noise on the actions of training episodes."""

    scale: Fraction = 0.1
    """Initial standard deviation of the noise, as a fraction of an action's range."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9999
    """Factor on the noise per step (with prices: day) of an agent's training episodes, as if none ended early."""
    minimum: Fraction = 0.01
    """Smallest standard deviation of the noise, as a fraction of an action's range."""
    random_steps: CountOrZero = 0
    """Until all agents together have recorded this many transitions, actions of training episodes are uniformly random,
    and an agent's fitness is its validation fitness. PPO requires 0."""


class ReplayConfig(Section):
    """The replay buffer that all agents share."""

    capacity: Rows = 50_000
    """Most transitions that the buffer keeps; new ones then overwrite the oldest."""
    minimum: Rows = 10_000
    """Learning starts once the buffer has this many transitions."""
    actions: Literal["float32", "float16"] = "float32"
    """Type of stored actions in the tasks `market` and `portfolio`; `float16` rounds by less than 0.05 %."""
    settlement_bars: bool = False
    """Whether the task `market` also stores the settlement days (`trading.settlement_bars`), on which agents decide
    nothing; if false, the rewards of these days are added to that of the episode's last trading day."""

    ordered = (("replay.minimum", "replay.capacity", "learning would never start"),)


class LearnerConfig(Section):
    """Settings of all learning algorithms."""

    algorithm: LearnerName
    """Update rule."""
    critic_learning_rate: NonNegative = 3e-4
    """Learning rate of the critic and the encoder; with `counterfactual` of all weights."""
    weight_decay: NonNegative = 1e-5
    """Decoupled weight decay, as in AdamW: each step shrinks weights by this share times the learning rate."""
    gradient_clip: Positive = 1.0
    """Maximum norm of each agent's gradient, for actor and critic separately."""

    @property
    def learns(self) -> bool:
        """Whether agents take gradient steps; without any, only evolution changes them."""
        return any(getattr(self, steps, 0) > 0 for steps in ("gradient_steps", "epochs"))


class BatchLearnerConfig(LearnerConfig):
    """Settings of algorithms that learn from batches of transitions."""

    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Transitions in a batch; with prices each is of a different day, except with PPO."""
    reward_scale: Positive = 0.02
    """Rewards are multiplied by this before learning."""
    reward_clip: Positive | None = None
    """Scaled rewards are clipped to plus or minus this before learning; empty: never."""


class BatchSamplingConfig(BatchLearnerConfig):
    """Settings of algorithms that sample their batches."""

    gradient_steps: CountOrZero = 32
    """Optimizer steps per agent and generation; 0: evolution only."""
    accumulation_steps: Count = 1
    """Batches whose gradients are averaged for one optimizer step."""
    block_bars: CountOrZero = 1_000
    """Consecutive training days, from a random one on, that `tcn` encodes for a batch, whose transitions are all of
    these days. 0: all training days."""


class ActorCriticConfig(BatchLearnerConfig):
    """Settings of actor-critic algorithms."""

    actor_learning_rate: NonNegative = 1e-4
    """Learning rate of the actor."""
    gamma: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount factor per step."""
    known_return_weight: NonNegative = 0.0
    """Weight of a further loss of the encoder: the mean squared error with which a linear function of an asset's
    embedding predicts its known return over the holding time, traded or not. 0: none. Only for tasks with prices."""


class OffPolicyConfig(BatchSamplingConfig, ActorCriticConfig):
    """Settings of actor-critic algorithms with the shared replay buffer and target networks."""

    n_step: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Steps of the n-step return before it bootstraps from the critic; fewer at an episode's end."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Share of the learned weights that is mixed into the target networks whenever these are updated."""


class DdpgConfig(OffPolicyConfig):
    """Deep deterministic policy gradient."""

    algorithm: Literal["ddpg"] = "ddpg"
    policy_delay: Count = 1
    """Critic steps per update of actor and target networks; generations do not restart the count. Default of TD3: 2."""
    twin_critics: bool = False
    """Whether to learn two critics and use the lower of their values, as `td3` and `sac` always do."""


class Td3Config(OffPolicyConfig):
    """Twin delayed DDPG: two critics, a delayed policy and smoothed targets."""

    algorithm: Literal["td3"] = "td3"
    policy_delay: Count = 2
    """Critic steps per update of actor and target networks; generations do not restart the count. Default of TD3: 2."""
    target_noise: Fraction = 0.1
    """Standard deviation of the noise on the target actor's actions, as a fraction of an action's range."""
    target_noise_clip: Fraction = 0.25
    """Bound of the target noise, as a fraction of an action's range."""


class SacConfig(OffPolicyConfig):
    """Soft actor-critic: a stochastic policy with two critics and a learned temperature."""

    algorithm: Literal["sac"] = "sac"
    initial_temperature: Positive = 1.0
    """Initial temperature: weight of the policy's entropy relative to scaled rewards."""
    temperature_learning_rate: NonNegative = 3e-4
    """Learning rate of the temperature's logarithm."""
    entropy_target: Annotated[float, Field(ge=-100.0, le=100.0)] = -1.0
    """Entropy per value of an action, its range scaled to [-1, 1], towards which the temperature is learned (nats)."""


class PpoConfig(ActorCriticConfig):
    """Proximal policy optimization, on the generation's own episodes only."""

    algorithm: Literal["ppo"] = "ppo"
    epochs: CountOrZero = 10
    """Passes over the episodes of a generation; 0: evolution only."""
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Clip range of the ratio of new to old probabilities around 1."""
    value_clip: Positive | None = None
    """Clip range of the critic's values around those before the generation's learning (scaled rewards); empty: none."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation: decay of later temporal-difference errors."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the actor's objective."""
    initial_log_std: Annotated[float, Field(ge=-20.0, le=2.0)] = 0.0
    """Logarithm of the policy's standard deviation at the start, before actions are squashed to their range."""
    anneal: bool = False
    """Whether learning rates fall linearly to zero over the run's `generations`."""
    kl_limit: Positive | None = None
    """KL divergence from the policy that played the generation's episodes, above which an agent stops learning until
    the next generation (nats). Empty: no limit."""


class CounterfactualConfig(BatchSamplingConfig):
    """Regression on the gain of every asset on every training day at every sale target, traded or not."""

    algorithm: Literal["counterfactual"] = "counterfactual"
    target_bins: Annotated[int, Field(ge=1, le=100)] = 4
    """Number of sale targets that are learned, evenly spread from `trading.min_target` to `trading.max_target`."""
    ema_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Agents act by an exponential moving average of their weights, of which a gradient step keeps this share; 0: by
    the weights of the last step."""
    gate_standard_errors: NonNegative = 0.0
    """With `network.linear_scales` a network's output counts only if it explains what the linear part misses on days
    held out by more than this many standard errors."""


class DirectConfig(LearnerConfig):
    """Gradient ascent on the growth of the account (task `portfolio`)."""

    algorithm: Literal["direct"] = "direct"
    actor_learning_rate: NonNegative = 1e-4
    """Learning rate of the actor."""
    gradient_steps: CountOrZero = 32
    """Optimizer steps per agent and generation; 0: evolution only."""
    stretch_bars: Count = 400
    """Consecutive training bars on which one gradient is computed; all of them, if there are fewer (bars)."""
    stretches: Count = 1
    """Number of stretches of `stretch_bars` days whose gradients are averaged for one optimizer step."""
    risk_aversion: NonNegative = 0.0
    """Weight of the variance of daily rewards, which is subtracted from their mean in the objective."""


def batch_setting(learner: LearnerConfig, name: Literal["batch_size", "block_bars"]) -> int:
    """Return setting `name` of a learner, or the default in `BatchSamplingConfig` if its algorithm does not have it."""
    value: int = getattr(learner, name, BatchSamplingConfig.model_fields[name].default)
    return value


def known_return_weight(learner: LearnerConfig) -> float:
    """Return the setting of a learner, or 0 if its algorithm does not have it."""
    weight: float = getattr(learner, "known_return_weight", 0.0)
    return weight


class EvaluationConfig(Section):
    """Training, validation and holdout episodes, fitness, and the score that chooses the champion (best agent)."""

    slices: Count = 5
    """Training episodes that each agent plays in a generation, with exploration noise."""
    lowest: Count = 2
    """Fitness is the mean total reward of this many worst training episodes, if `fitness_slices` is 0."""
    fitness_slices: CountOrZero = 0
    """Fitness is the mean total reward of this many further training episodes without noise, evenly spread over the
    training days and the same for all agents and generations; 0: of the `lowest` training episodes, with noise."""
    shared_slices: bool = True
    """Whether all agents of a generation play the same training episodes."""
    validation_slices: Count = 3
    """Validation episodes of each agent, evenly spread and the same in every generation."""
    validation_lowest: Count = 2
    """Validation fitness is the mean total reward of this many worst validation episodes."""
    champion_validation_share: Fraction = 1.0
    """Weight of the validation fitness in the champion's score; the rest is the weight of the fitness."""
    champion_standard_errors: NonNegative = 0.0
    """How many standard errors of the mean over episodes are subtracted from the score: a lower confidence bound."""
    holdout_slices: Count | None = None
    """Holdout episodes of the champion, and of each untrained agent to compare it with; empty: `validation_slices`."""

    ordered = (
        ("evaluation.lowest", "evaluation.slices", "there are not that many episodes"),
        ("evaluation.validation_lowest", "evaluation.validation_slices", "there are not that many episodes"),
    )

    @property
    def fixed_episodes(self) -> int:
        """Number of an agent's fitness and validation episodes, which are the same in every generation."""
        return self.fitness_slices + self.validation_slices

    @property
    def holdout_episodes(self) -> int:
        return self.holdout_slices or self.validation_slices

    @model_validator(mode="after")
    def _score_is_known(self) -> Self:
        if self.champion_validation_share < 1.0 and not self.fitness_slices:
            raise ValueError(
                f"evaluation.champion_validation_share {self.champion_validation_share:g} needs a fitness that "
                "compares agents of different generations: set evaluation.fitness_slices"
            )
        return self


class EvolutionConfig(Section):
    """Settings common to all population methods, which make the next population at the end of each generation."""

    method: MethodName
    """Population method."""


class BreedingConfig(EvolutionConfig):
    """Settings of methods that breed elites, offspring and mutants."""

    evolves: Literal["weights", "genes"] = "weights"
    """What offspring blend and mutants change. `weights`: all weights of an agent. `genes`: the few numbers beside its
    weights: the selectivity with `learner.algorithm` counterfactual and with `network.linear_scales`, in the task
    `portfolio` gain and speed; weights and learning state are those of the first parent. Agents without genes evolve
    their weights."""
    elite_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the population, the fittest, that survives unchanged."""
    offspring_share: Fraction = 0.375
    """Share of the population that is bred from two parents; mutants are the rest, after elites and these."""
    tournament_size: Count = 3
    """Agents drawn at random to choose one parent; the fittest of them becomes the parent."""
    blend_low: Fraction = 0.3
    """Lower bound of the first parent's share in a child's weights; it is drawn once per child, uniformly."""
    blend_high: Fraction = 0.7
    """Upper bound of the first parent's share in a child's weights."""
    mutation_rate: Fraction = 0.1
    """Share of its parent's weights that a mutant changes; of its genes it changes all."""
    mutation_std: NonNegative = 0.01
    """Standard deviation of the Gaussian noise that mutation adds to a weight; to a gene, as a share of its range."""
    plateau_generations: Count = 3
    """Generations without progress (a plateau) after which mutation grows, by `mutation_growth`."""
    plateau_improvement: NonNegative = 0.02
    """Relative improvement of the champion's score that counts as progress."""
    first_champion_plateau: bool = False
    """Whether progress is always that of the champion's score. If false, it is that of the population's median fitness
    while the champion is from generation 1, before any learning. True in runs that are older than this setting."""
    mutation_growth: Annotated[float, Field(ge=1.0, le=1e9)] = 1.5
    """Factor on mutation rate and standard deviation at each plateau; progress resets both."""
    mutation_rate_limit: Fraction = 0.4
    """Largest mutation rate to which plateaus can raise it."""
    mutation_std_limit: NonNegative = 0.05
    """Largest standard deviation of mutation to which plateaus can raise it."""
    reinject_champion: bool = True
    """Whether the champion replaces the weakest elite, unless the champion is an elite itself."""

    ordered = (
        ("evolution.blend_low", "evolution.blend_high", "swap them"),
        ("evolution.mutation_rate", "evolution.mutation_rate_limit", "lower it"),
        ("evolution.mutation_std", "evolution.mutation_std_limit", "lower it"),
    )

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.elite_share + self.offspring_share > 1.0:
            raise ValueError(
                f"evolution.elite_share {self.elite_share:g} and evolution.offspring_share {self.offspring_share:g} "
                "add up to more than 1: lower one of them"
            )
        return self


class GeneticConfig(BreedingConfig):
    """Elites, crossover and mutation over agents that all learn."""

    method: Literal["genetic"] = "genetic"
    enabled: bool = True
    """Whether the population evolves at the end of each generation; false: gradients only."""


class CemConfig(EvolutionConfig):
    """Cross-entropy method: actors are drawn from a distribution, some of them learn, and the fittest update it."""

    method: Literal["cem"] = "cem"
    elite_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the population, the fittest agents, that updates the distribution."""
    learning_agents: CountOrZero | None = None
    """Number of agents that learn by gradients; empty: half of all but one."""
    shared_critic: Literal["mean", "fittest"] = "mean"
    """Critic of drawn agents: the mean of the critics of all that have learned, or that of the fittest of these."""
    distribution_variance: NonNegative = 1e-3
    """Initial variance of each weight of an actor, and initial value of the noise that each generation adds to it."""
    distribution_variance_limit: NonNegative = 1e-5
    """Final value of the noise that each generation adds to the variances."""
    distribution_variance_decay: Fraction = 0.95
    """Factor per generation on the excess of that noise over its final value."""


class ErlConfig(BreedingConfig):
    """Evolutionary reinforcement learning: a genetic algorithm over some agents; others learn, and are copied there."""

    method: Literal["erl"] = "erl"
    learning_agents: CountOrZero | None = None
    """Number of agents that learn by gradients; empty: one."""
    sync_generations: Count = 10
    """Generations between two copies of the fittest learning agent over one that evolves."""


class PbtConfig(EvolutionConfig):
    """Population based training: each agent learns by its own learning rates, discount, reward scale and noise, and the
    weakest copy the fittest and perturb these settings."""

    method: Literal["pbt"] = "pbt"
    sync_generations: Count = 10
    """Generations between two copies of the fittest agents over the weakest."""
    exploit_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.2
    """Share of the population, its weakest agents, each of which copies one of as many fittest agents at random."""
    perturbation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2
    """Learning rates, 1 - gamma, reward scale and noise of a copy are multiplied by 1 plus or minus this, at random."""


def _subclasses(kind: type[Section]) -> Iterator[type[Section]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


class Variants(NamedTuple):
    """The classes of a section: one for each value of its setting `key`, and `common`, their base class."""

    key: str
    common: type[Section]
    models: Mapping[str, type[Section]]

    @classmethod
    def of(cls, key: str, common: type[Section], names: Iterable[str], without: type[Section]) -> "Variants":
        """Return a class for each registered name: the one whose setting `key` has it as default.

        A name that has none, since it adds no setting, has the settings of the class `without`.
        """
        own = {kind.model_fields[key].default: kind for kind in _subclasses(common)}
        plain = ConfigDict(use_attribute_docstrings=False)  # a class that no file contains

        def named(name: str) -> type[Section]:
            members = {"__module__": __name__, "__annotations__": {key: Literal[name]}, key: name}
            # A global of this module, by which pickle finds it.
            globals()[f"_{name}"] = made = type(f"_{name}", (without,), {**members, "model_config": plain})
            return made

        models = {name: own[name] if name in own else named(name) for name in names}
        return cls(key, common, models)

    def model_for(self, values: Mapping[str, Any]) -> type[Section] | None:
        """Return the class that the values of a section choose; None if they lack `key` or no class has its value."""
        name = values.get(self.key)
        return self.models.get(name) if isinstance(name, str) else None


VARIANTS: Mapping[str, Variants] = {
    "learner": Variants.of("algorithm", LearnerConfig, LEARNERS, OffPolicyConfig),
    "evolution": Variants.of("method", EvolutionConfig, METHODS, EvolutionConfig),
}
"""Sections with a class for each algorithm or method, by the name of the section."""
if TYPE_CHECKING:
    AnyLearnerConfig = LearnerConfig
    AnyEvolutionConfig = EvolutionConfig
else:
    AnyLearnerConfig, AnyEvolutionConfig = (reduce(or_, kinds.models.values()) for kinds in VARIANTS.values())
