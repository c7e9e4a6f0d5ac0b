"""Stacked networks: encoder, pooling, actor and critic for a group of agents."""

from eigen_core.networks.agent import (
    ACTION_VALUES,
    AgentNetwork,
    MarketEmbedding,
)
from eigen_core.networks.encoders import Encoder
from eigen_core.networks.layout import ParameterLayout, Parameters

__all__ = [
    "ACTION_VALUES",
    "AgentNetwork",
    "Encoder",
    "MarketEmbedding",
    "ParameterLayout",
    "Parameters",
]
