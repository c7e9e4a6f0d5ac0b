"""Trading: orders, episodes and their rewards, accounts in money, and their metrics."""

from eigen_core.trading.environment import (
    EPISODE_TIME_VALUES,
    PORTFOLIO_VALUES,
    Decision,
    DecisionInputs,
    EpisodeSummary,
    HeldPrices,
    TradingEnvironment,
    episode_times,
    trade_whole_episodes,
)
from eigen_core.trading.equity import EquityCurve
from eigen_core.trading.excess import excess_of_days, market_gains, mean_excess, newey_west_lags
from eigen_core.trading.order_fills import Fills
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import DecidedTrades, TradedAccounts, trade_accounts

__all__ = [
    "EPISODE_TIME_VALUES",
    "PORTFOLIO_VALUES",
    "DecidedTrades",
    "Decision",
    "DecisionInputs",
    "EpisodeSummary",
    "EquityCurve",
    "Fills",
    "HeldPrices",
    "Prices",
    "TradedAccounts",
    "TradingEnvironment",
    "episode_times",
    "excess_of_days",
    "market_gains",
    "mean_excess",
    "newey_west_lags",
    "trade_accounts",
    "trade_whole_episodes",
]
