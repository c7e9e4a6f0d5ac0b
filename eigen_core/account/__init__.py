"""Accounts in money: what agents and baselines earn with a capital, day after day."""

from eigen_core.account.equity import EquityCurve

__all__ = ["EquityCurve"]
