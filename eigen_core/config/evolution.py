"""The section of the configuration that is about evolution."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from eigen_core.config.choices import MethodName
from eigen_core.config.values import Count, CountOrZero, Fraction, NonNegative, Section


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
