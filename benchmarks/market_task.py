"""The market of a training state."""

from eigen_core.generation import TrainingState
from eigen_core.task.market import MarketTask


def market_of(state: TrainingState) -> MarketTask:
    """The task of a state that plays the market."""
    assert isinstance(state.task, MarketTask)
    return state.task
