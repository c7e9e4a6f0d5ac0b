"""How agents learn from stored transitions."""

from typing import cast

from eigen_core.config import LearnerConfig
from eigen_core.config.values import LEARNERS, chosen
from eigen_core.learners.interface import Learner, LearningPlan, LearningResult

__all__ = ["Learner", "LearningPlan", "LearningResult", "learner_class"]


def learner_class(config: LearnerConfig) -> type[Learner]:
    """Return the class of the learner that a configuration names."""
    return cast("type[Learner]", chosen(LEARNERS, config.algorithm))
