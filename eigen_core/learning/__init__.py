"""Learners and population methods: how agents learn, and which agents the next generation has."""

from typing import cast

from eigen_core.config import EvolutionConfig, LearnerConfig
from eigen_core.config.registry import LEARNERS, METHODS, load_class
from eigen_core.learning.fitness import Champion
from eigen_core.learning.interface import Learner, LearningPlan, LearningResult
from eigen_core.learning.population_method import (
    GenerationResult,
    MethodState,
    NextPopulation,
    PopulationMethod,
)

__all__ = [
    "Champion",
    "GenerationResult",
    "Learner",
    "LearningPlan",
    "LearningResult",
    "MethodState",
    "NextPopulation",
    "PopulationMethod",
    "learner_class",
    "method_class",
]


def learner_class(config: LearnerConfig) -> type[Learner]:
    return cast("type[Learner]", load_class(LEARNERS, config.algorithm))


def method_class(config: EvolutionConfig) -> type[PopulationMethod]:
    return cast("type[PopulationMethod]", load_class(METHODS, config.method))
