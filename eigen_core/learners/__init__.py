"""How agents learn from stored transitions."""

from typing import cast

from eigen_core.config import LearnerConfig
from eigen_core.config.choices import LEARNERS, chosen
from eigen_core.learners.interface import Learned, Learner, LearningPlan

__all__ = ["Learned", "Learner", "LearningPlan", "learner_class"]


def learner_class(config: LearnerConfig) -> type[Learner]:
    """Return the class of the learner that a configuration names."""
    return cast("type[Learner]", chosen(LEARNERS, config.algorithm))
