"""Stacked networks: encoder, pooling, actor and critic for a group of agents."""

from eigen_core.networks.agent import (
    ACTION_VALUES,
    AgentNetwork,
    MarketSight,
)
from eigen_core.networks.encoder import Encoder, FilterBankEncoder, TcnEncoder
from eigen_core.networks.layout import ParameterLayout, Parameters

__all__ = [
    "ACTION_VALUES",
    "AgentNetwork",
    "Encoder",
    "FilterBankEncoder",
    "MarketSight",
    "ParameterLayout",
    "Parameters",
    "TcnEncoder",
]
