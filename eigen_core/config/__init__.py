"""One validated model of all settings of a run, and the presets that fill it."""

from eigen_core.config.account import AccountConfig
from eigen_core.config.evolution import EvolutionConfig
from eigen_core.config.learning import (
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
)
from eigen_core.config.market import EnvironmentConfig, MarketConfig, TradingConfig
from eigen_core.config.model import Config
from eigen_core.config.portfolio import PortfolioConfig
from eigen_core.config.presets import PRESET_NAMES, merge, preset_values
from eigen_core.config.running import CheckpointConfig, MemoryConfig, ReportingConfig

__all__ = [
    "PRESET_NAMES",
    "AccountConfig",
    "CheckpointConfig",
    "Config",
    "EnvironmentConfig",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExplorationConfig",
    "LearnerConfig",
    "MarketConfig",
    "MemoryConfig",
    "NetworkConfig",
    "PopulationConfig",
    "PortfolioConfig",
    "ReplayConfig",
    "ReportingConfig",
    "TradingConfig",
    "merge",
    "preset_values",
]
