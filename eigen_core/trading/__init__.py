"""The trading environment: orders, accounting and rewards as arrays over episodes."""

from eigen_core.trading.environment import TradingEnvironment, episode_place
from eigen_core.trading.prices import Prices
from eigen_core.trading.summary import EpisodeSummary
from eigen_core.trading.whole_episodes import trade_whole_episodes

__all__ = ["EpisodeSummary", "Prices", "TradingEnvironment", "episode_place", "trade_whole_episodes"]
