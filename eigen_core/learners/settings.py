"""The settings of a learner: those of its algorithm, and those that may differ from agent to agent."""

from typing import TypeVar

from torch import Tensor

from eigen_core.config import Config, LearnerConfig
from eigen_core.networks.population import Population

C = TypeVar("C", bound=LearnerConfig)


def learner_settings(config: Config, kind: type[C]) -> C:
    """Return the section `learner` of a configuration whose algorithm has settings of this kind.

    Raises:
        TypeError: it is the configuration of another algorithm.
    """
    if not isinstance(config.learner, kind):
        raise TypeError(f"learner.algorithm {config.learner.algorithm} has no {kind.__name__}.")
    return config.learner


def setting(group: Population, config: LearnerConfig, name: str) -> float | Tensor:
    """Return a setting of the learner: each agent's own, float32 `[agents, 1]`, where it is a gene, else a number."""
    gene = group.genes.get(name)
    if gene is not None:
        return gene[:, None]
    value: float = getattr(config, name)
    return value
