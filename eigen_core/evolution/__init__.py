"""Population methods: genetic algorithm, CEM-RL, ERL, PBT."""

from typing import cast

from eigen_core.config import EvolutionConfig
from eigen_core.config.values import METHODS, chosen
from eigen_core.evolution.interface import Champion, GenerationResult, MethodState, NextPopulation, PopulationMethod

__all__ = ["Champion", "GenerationResult", "MethodState", "NextPopulation", "PopulationMethod", "method_class"]


def method_class(config: EvolutionConfig) -> type[PopulationMethod]:
    """Return the class of the population method that a configuration names.

    Where breeding is off it is the genetic algorithm's, which then keeps all agents.
    """
    return cast("type[PopulationMethod]", chosen(METHODS, config.method if config.enabled else "genetic"))
