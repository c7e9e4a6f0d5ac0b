"""The section of the configuration that is about accounts in money."""

from typing import Annotated, Literal

from pydantic import Field

from eigen_core.config.values import Count, Positive, Section

Rate = Annotated[float, Field(gt=-1.0, le=10.0)]


class AccountConfig(Section):
    """The account in money that a backtest keeps. Training does not depend on it."""

    capital: Positive = 100_000.0
    """Money before the first day."""
    sizing: Literal["coefficient", "equal", "fixed"] = "coefficient"
    """What a new position takes, costs included, at most the cash at its fill. `coefficient`: the share coefficient /
    (`trading.max_coefficient` x `trading.holding_days` x `trading.purchases_per_day`) of the equity at the close of the
    decision's day, so that the purchases of all days never invest more than the equity; `equal`: the share 1 /
    (`trading.holding_days` x `trading.purchases_per_day`), as `coefficient` does where `trading.max_coefficient` is
    empty; `fixed`: `account.fixed_amount`."""
    fixed_amount: Positive = 5_000.0
    """What a new position takes with `fixed` sizing (money)."""
    shares: Literal["fractional", "whole"] = "fractional"
    """Whether parts of a share can be bought."""
    interest: Rate = 0.0
    """Interest of cash, a year (a fraction); it is earned by calendar time."""
    periods_per_year: Count | None = None
    """Days of trading a year, by which figures are annualised. Empty: as many as the data have."""
    risk_free: Rate = 0.0
    """What is earned without risk, a year (a fraction), by calendar time: the Sharpe ratio is that of what returns are
    beyond it."""
