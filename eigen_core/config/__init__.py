"""One validated model of everything that a run can be told, and the presets that fill it."""

from eigen_core.config.model import Config
from eigen_core.config.presets import PRESET_NAMES, merge, preset_values
from eigen_core.config.sections import (
    CheckpointConfig,
    EvaluationConfig,
    EvolutionConfig,
    ExplorationConfig,
    LearnerConfig,
    MarketConfig,
    MemoryConfig,
    NetworkConfig,
    PopulationConfig,
    ReplayConfig,
    ReportingConfig,
    TradingConfig,
)

__all__ = [
    "PRESET_NAMES",
    "CheckpointConfig",
    "Config",
    "EvaluationConfig",
    "EvolutionConfig",
    "ExplorationConfig",
    "LearnerConfig",
    "MarketConfig",
    "MemoryConfig",
    "NetworkConfig",
    "PopulationConfig",
    "ReplayConfig",
    "ReportingConfig",
    "TradingConfig",
    "merge",
    "preset_values",
]
