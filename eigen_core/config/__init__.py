"""`Config`, a validated pydantic model of all settings of a run, and the presets that give its values."""

from eigen_core.config.learning import (
    VARIANTS as VARIANTS,
    ActorCriticConfig as ActorCriticConfig,
    BatchLearnerConfig as BatchLearnerConfig,
    BatchSamplingConfig as BatchSamplingConfig,
    BreedingConfig as BreedingConfig,
    CemConfig as CemConfig,
    CounterfactualConfig as CounterfactualConfig,
    DdpgConfig as DdpgConfig,
    DirectConfig as DirectConfig,
    ErlConfig as ErlConfig,
    EvolutionConfig as EvolutionConfig,
    GeneticConfig as GeneticConfig,
    LearnerConfig as LearnerConfig,
    NetworkConfig as NetworkConfig,
    OffPolicyConfig as OffPolicyConfig,
    PbtConfig as PbtConfig,
    PopulationConfig as PopulationConfig,
    PpoConfig as PpoConfig,
    SacConfig as SacConfig,
    Td3Config as Td3Config,
)
from eigen_core.config.market import (
    EnvironmentConfig as EnvironmentConfig,
    MarketConfig as MarketConfig,
    PriceEvent as PriceEvent,
    TradingConfig as TradingConfig,
)
from eigen_core.config.model import (
    PRESET_NAMES as PRESET_NAMES,
    AccountConfig as AccountConfig,
    CheckpointConfig as CheckpointConfig,
    Config as Config,
    merge as merge,
    preset_space as preset_space,
    preset_values as preset_values,
)
