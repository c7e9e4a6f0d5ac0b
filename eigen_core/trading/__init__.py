"""The trading environment: orders, accounting and rewards as arrays over episodes."""

from eigen_core.trading.environment import (
    EPISODE_TIME_VALUES,
    Decision,
    DecisionInputs,
    TradingEnvironment,
    episode_times,
)
from eigen_core.trading.excess import excess_of, excess_of_days, market_gains, newey_west_lags
from eigen_core.trading.fills import Fills
from eigen_core.trading.orders import entry_prices
from eigen_core.trading.positions import PORTFOLIO_VALUES, HeldPrices
from eigen_core.trading.prices import Prices
from eigen_core.trading.summary import EpisodeSummary
from eigen_core.trading.whole_episodes import trade_whole_episodes

__all__ = [
    "EPISODE_TIME_VALUES",
    "PORTFOLIO_VALUES",
    "Decision",
    "DecisionInputs",
    "EpisodeSummary",
    "Fills",
    "HeldPrices",
    "Prices",
    "TradingEnvironment",
    "entry_prices",
    "episode_times",
    "excess_of",
    "excess_of_days",
    "market_gains",
    "newey_west_lags",
    "trade_whole_episodes",
]
