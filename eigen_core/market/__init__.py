"""Market data: price files, their cleaning, features, and the panel, arrays of a market that other packages read."""

from eigen_core.market.build import build_panel
from eigen_core.market.features import Bars
from eigen_core.market.panel import Panel, panel_of_prices
from eigen_core.market.report import DataReport

__all__ = ["Bars", "DataReport", "Panel", "build_panel", "panel_of_prices"]
