"""Accounts in money: what agents and baselines earn with a capital, day after day."""

from eigen_core.account.equity import EquityCurve
from eigen_core.account.trades import DecidedTrades, TradedAccounts, trade_accounts

__all__ = ["DecidedTrades", "EquityCurve", "TradedAccounts", "trade_accounts"]
