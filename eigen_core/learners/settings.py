"""Settings of the learner that may differ from agent to agent."""

from torch import Tensor

from eigen_core.config import LearnerConfig
from eigen_core.population import Population


def setting(group: Population, config: LearnerConfig, name: str) -> float | Tensor:
    """Return a setting of the learner: each agent's own, float32 `[agents, 1]`, where it is a gene, else a number."""
    gene = group.genes.get(name)
    if gene is not None:
        return gene[:, None]
    value: float = getattr(config, name)
    return value
