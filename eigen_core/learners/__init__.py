"""Update rules that learn from the replay, for a group of agents at a time."""

from eigen_core.learners.ddpg import DdpgLearner, LearningCurves, LearningPlan

__all__ = ["DdpgLearner", "LearningCurves", "LearningPlan"]
