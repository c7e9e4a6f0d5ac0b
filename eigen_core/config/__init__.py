"""One validated model of all settings of a run, and the presets that fill it."""

from eigen_core.config.account import AccountConfig
from eigen_core.config.evolution import EvolutionConfig
from eigen_core.config.learning import (
    LEARNER_CONFIGS,
    ActorCriticConfig,
    BatchLearnerConfig,
    BatchSamplingConfig,
    CounterfactualConfig,
    DdpgConfig,
    DirectConfig,
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    NetworkConfig,
    OffPolicyConfig,
    PopulationConfig,
    PpoConfig,
    ReplayConfig,
    SacConfig,
    Td3Config,
)
from eigen_core.config.market import EnvironmentConfig, MarketConfig, TradingConfig
from eigen_core.config.model import Config
from eigen_core.config.portfolio import PortfolioConfig
from eigen_core.config.presets import PRESET_NAMES, merge, preset_values
from eigen_core.config.running import CheckpointConfig, MemoryConfig, ReportingConfig

__all__ = [
    "LEARNER_CONFIGS",
    "PRESET_NAMES",
    "AccountConfig",
    "ActorCriticConfig",
    "BatchLearnerConfig",
    "BatchSamplingConfig",
    "CheckpointConfig",
    "Config",
    "CounterfactualConfig",
    "DdpgConfig",
    "DirectConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExplorationConfig",
    "LearnerConfig",
    "MarketConfig",
    "MemoryConfig",
    "NetworkConfig",
    "OffPolicyConfig",
    "PopulationConfig",
    "PortfolioConfig",
    "PpoConfig",
    "ReplayConfig",
    "ReportingConfig",
    "SacConfig",
    "Td3Config",
    "TradingConfig",
    "merge",
    "preset_values",
]
