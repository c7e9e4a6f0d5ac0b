"""Learners and population methods: how agents learn, and which agents the next generation has."""

from typing import cast

from eigen_core.config import EvolutionConfig, LearnerConfig
from eigen_core.config.registry import LEARNERS, METHODS, load_class
from eigen_core.learning.interface import Learner
from eigen_core.learning.population_method import PopulationMethod


def learner_class(config: LearnerConfig) -> type[Learner]:
    return cast("type[Learner]", load_class(LEARNERS, config.algorithm))


def method_class(config: EvolutionConfig) -> type[PopulationMethod]:
    return cast("type[PopulationMethod]", load_class(METHODS, config.method))
