"""Encoders: from the window that ends on a day to one embedding per column. They read market data only.

All depend on a bounded number of days (at most the window), so all days of a block are encoded in one pass, equal to
the bit to encoding window after window.
"""

from typing import cast

from eigen_core.config import NetworkConfig
from eigen_core.config.values import ENCODERS, chosen
from eigen_core.networks.encoders.interface import Encoder, FirstDay

__all__ = ["Encoder", "FirstDay", "encoder_class"]


def encoder_class(config: NetworkConfig) -> type[Encoder]:
    """Return the class of the encoder that a configuration names."""
    return cast("type[Encoder]", chosen(ENCODERS, config.encoder))
