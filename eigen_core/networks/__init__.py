"""Networks of a group of agents, computed together: encoder, pooling, actor and critic."""

from eigen_core.networks.actions import AssetActions, market_actions, portfolio_actions
from eigen_core.networks.agent import AgentNetwork, MarketEmbedding
from eigen_core.networks.encoders import Encoder
from eigen_core.networks.layout import ParameterLayout, Parameters
from eigen_core.networks.policies import Box, Heads, Policy, SquashedGaussian

__all__ = [
    "AgentNetwork",
    "AssetActions",
    "Box",
    "Encoder",
    "Heads",
    "MarketEmbedding",
    "ParameterLayout",
    "Parameters",
    "Policy",
    "SquashedGaussian",
    "market_actions",
    "portfolio_actions",
]
