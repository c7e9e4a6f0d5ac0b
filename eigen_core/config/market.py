"""Settings of prices, trading rules and Gymnasium environments."""

import os
import zoneinfo
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from eigen_core.common.errors import InputError
from eigen_core.common.text import shown
from eigen_core.config.values import (
    Count,
    CountOrZero,
    Date,
    Fraction,
    NonNegative,
    Positive,
    Section,
    Text,
)

Heading = Text | None


class ColumnsConfig(Section):
    """Headings of a price file's columns, where they are not those of the long layout or of a known vendor."""

    date: Heading = None
    """Heading of the column of dates or time stamps; empty: `date`, `datetime`, `timestamp` or `trade date`."""
    time: Heading = None
    """Heading of the column of times of day beside the dates; empty: `time`."""
    symbol: Heading = None
    """Heading of the column of symbols; empty: `symbol` or `ticker`."""
    open: Heading = None
    """Heading of the column of opens; empty: `open`."""
    high: Heading = None
    """Heading of the column of highs; empty: `high`."""
    low: Heading = None
    """Heading of the column of lows; empty: `low`."""
    close: Heading = None
    """Heading of the column of closes; empty: `close`."""
    adjusted_close: Heading = None
    """Heading of the column of adjusted closes; empty: `adj close` or `adjusted close`."""
    volume: Heading = None
    """Heading of the column of volumes; empty: `volume` or `vol`."""


class MarketConfig(Section):
    """Which prices, which features, which days."""

    data: Text | None = None
    """Price file or folder: CSV, Parquet or Feather, one file, or a folder with one file a symbol; or `us5`, the
    bundled bars of five US stocks, 2000-2013. Empty: the bundled 20 S&P 500 stocks, 1990-2022."""
    layout: Literal["long", "wide"] = "long"
    """`long`: one row a symbol and day. `wide`: one row a day, and each column beside the date has the closes of one
    symbol, unless the headings are those of the long layout or of a known vendor."""
    symbols: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Symbols that are read, beside those of `market.context`; empty: all."""
    symbol_from: Text | None = None
    """Where in the names of a folder's files the symbol is, as `{symbol}-1d-{part}.csv`; a part begins with a digit.
    Empty: a file without a column of symbols is named after its symbol."""
    date_format: Text | None = None
    """How dates are written, in the directives of strftime as `%d.%m.%Y`; or `s`, `ms`, `us`, `ns`, the unit in which
    they count from 1970. Empty: as `2024-12-31`, with or without a time of day and a time zone, as `20241231`, or in
    milliseconds, microseconds or nanoseconds (13, 16 or 19 digits)."""
    decimal: Literal[".", ","] | None = None
    """The mark between the whole and the decimal part of a number; the other one may then divide thousands. Empty: a
    point; a comma, where numbers in the file show it."""
    suspicious: Literal["refuse", "drop", "keep"] = "refuse"
    """Rows whose prices make figures absurd (a factor of three and back, a jump as of a split or by a factor of five, a
    close of zero or below, a day twice, a loss of 99 % on the last day): refused, left out, or kept. The data report
    names them."""
    context: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Symbols that agents observe but cannot trade (an index, a rate)."""
    features: Literal["returns", "classic", "columns"] = "returns"
    """Feature set: `returns` is free of the price level; `classic` is the nine price-level features of the replaced
    system; `columns` are the numeric columns that the data has beside prices, alone."""
    own_features: Annotated[tuple[Text, ...], Field(max_length=1_000, fail_fast=True, strict=False)] = ()
    """Features beside that set: `columns`, and names of functions that are registered as entry points of the group
    `eigen.features`."""
    look_ahead: Literal["refuse", "allow"] = "refuse"
    """Where values of such a function change with later days: `refuse` trains nothing, `allow` trains with them."""
    intraday: Literal["refuse", "aggregate"] = "refuse"
    """Bars within a day: refused, or days are formed of them from midnight to midnight on the exchange's clock (first
    open, highest high, lowest low, last close, summed volume)."""
    time_zone: Text | None = None
    """The exchange's time zone, as `America/New_York`, in which stamps with a time zone become days. Empty: days are
    those of the stamps' own clock; stamps in UTC must then be at midnight."""
    window: Annotated[int, Field(ge=1, le=5_000)] = 64
    """Days that an agent observes, today included (days)."""
    validation_days: Count = 252
    """Days kept for choosing the champion (days)."""
    holdout_days: CountOrZero = 251
    """Last days of the data, used once, at the end (days)."""
    purge_days: CountOrZero = 0
    """Days left out between training and validation, and between validation and holdout, if there is one (days)."""
    first_date: Date | None = None
    """Prices before this date are left out, as if the data began with it; empty: none."""
    last_date: Date | None = None
    """Prices after this date are left out, as if the data ended with it; empty: none."""
    columns: ColumnsConfig = ColumnsConfig()
    """Headings of the columns, where they are not those of the long layout or of a known vendor."""

    @model_validator(mode="after")
    def _dates_are_ordered(self) -> Self:
        if self.first_date is not None and self.last_date is not None and self.first_date > self.last_date:
            raise ValueError(
                f"market.first_date {self.first_date} is after market.last_date {self.last_date}: swap them"
            )
        return self

    @property
    def days_after_training(self) -> int:
        """Days of validation, of holdout, and those left out before each of them."""
        purged = self.purge_days * (2 if self.holdout_days else 1)
        return self.validation_days + self.holdout_days + purged

    @field_validator("symbol_from")
    @classmethod
    def _pattern_has_a_symbol(cls, pattern: str | None) -> str | None:
        if pattern is not None and pattern.count("{symbol}") != 1:
            raise ValueError(
                f"market.symbol_from {shown(pattern)} must have {{symbol}} once, as {{symbol}}-1d-{{part}}.csv"
            )
        return pattern

    @model_validator(mode="after")
    def _time_zone_is_known(self) -> Self:
        try:
            zoneinfo.ZoneInfo(self.time_zone or "UTC")
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"market.time_zone {shown(self.time_zone)} is no time zone: name one like America/New_York, or UTC"
            ) from error
        return self


class TradingConfig(Section):
    """The rules of an episode and the reward."""

    trading_days: Count = 125
    """Days of an episode on which positions may be opened (days)."""
    settlement_days: CountOrZero = 20
    """Days after them on which positions may only close (days)."""
    holding_days: Count = 20
    """A sale is due at the latest this many days of trading of the symbol after the decision that bought it (days)."""
    buy_threshold: NonNegative = 1.0
    """An asset is bought only if its coefficient reaches this."""
    purchases_per_day: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Assets that may be bought on a day: those with the highest rank, without another in place of one that is held
    already. 1 with classic bookkeeping."""
    rank: Literal["coefficient", "separate"] = "coefficient"
    """What ranks the assets of a day: their coefficients, or a third value that agents give each asset, so that its
    coefficient says only whether it is bought, and how much; `coefficient` with classic bookkeeping."""
    max_coefficient: Positive | None = 3.0
    """Bound of the coefficient, which is a position's size; empty: unbounded (the classic rule)."""
    min_target: Positive = 0.10
    """Smallest sale target, as a fraction of the fill price."""
    max_target: Positive = 0.50
    """Largest sale target, as a fraction of the fill price."""
    fill: Literal["next_open", "next_close", "same_close"] = "next_open"
    """Price of an order: the next day's open (its close where there is no open), its close, or the close of the
    decision's day (the classic rule, at which no order can be filled any more). Where the symbol does not trade, a
    purchase lapses, and a sale waits for the symbol's next fill."""
    delisting_days: Count = 60
    """A symbol without a price for this many sessions of its market counts as ended (days)."""
    delisting_loss: Fraction | None = 0.3
    """What is held of a symbol that has ended is booked at its last close less this fraction. Empty: no symbol may miss
    a day after its first; runs that began when positions could be sold without a price go on with this."""
    credit: Literal["decision", "realized", "marked"] = "decision"
    """Day to which a trade's reward is booked: the decision's, the closing's (the classic rule), or day by day as the
    position is marked to market."""
    bookkeeping: Literal["exact", "classic"] = "exact"
    """`exact`: only assets with a price are chosen, a sale waits for a price, a gain of zero is no win, a day that ends
    without a position is idle. `classic`, the replaced system's: the
    choice of an asset without a price buys nothing, a position closes at its entry price on the first day without any
    price or on its last day without a close, although nothing trades then, a gain of zero is a win, a day on which a
    position closes is not idle."""
    cost_bps: NonNegative = 5.0
    """Transaction cost of each side of a trade (basis points of its value)."""
    slippage_bps: NonNegative = 2.0
    """Slippage of each order at the market: the entry and a sale at the close, not a sale at the target (basis
    points)."""
    loss_multiplier: Positive = 10.0
    """Losses count this many times in the reward."""
    idle_penalty: NonNegative = 0.0
    """Taken from the reward for each day that ends without any position (reward)."""
    no_trade_penalty: NonNegative = 100.0
    """Taken from the reward of an episode without a trade, on the last day on which a position may be opened; with
    classic bookkeeping on the last day of the episode (reward)."""
    observe_portfolio: bool = True
    """Agents observe their portfolio (held, days held, unrealised gain, coefficient) and the time in the episode."""

    @property
    def episode_days(self) -> int:
        """Days of an episode: trading and settlement."""
        return self.trading_days + self.settlement_days

    @property
    def no_trade_step(self) -> int:
        """Step of an episode on which `no_trade_penalty` is taken."""
        return (self.episode_days if self.bookkeeping == "classic" else self.trading_days) - 1

    @model_validator(mode="after")
    def _targets_are_ordered(self) -> Self:
        if self.min_target > self.max_target:
            raise ValueError(
                f"trading.min_target {self.min_target:g} is above trading.max_target {self.max_target:g}: swap them"
            )
        if self.bookkeeping == "classic" and self.rank == "separate":
            raise ValueError(
                "trading.rank separate is not a rule of the replaced system, which trading.bookkeeping classic keeps "
                "to and which ranks by coefficient: use rank coefficient, or bookkeeping exact"
            )
        if self.bookkeeping == "classic" and self.purchases_per_day > 1:
            raise ValueError(
                f"trading.purchases_per_day {self.purchases_per_day} is not a rule of the replaced system, which "
                "trading.bookkeeping classic keeps to and which buys one asset a day: use 1, or bookkeeping exact"
            )
        if self.settlement_days < self.holding_days:
            raise ValueError(
                f"trading.settlement_days {self.settlement_days} is shorter than trading.holding_days "
                f"{self.holding_days}: the last positions could not close inside their episode"
            )
        if self.max_coefficient is not None and self.max_coefficient < self.buy_threshold:
            raise ValueError(
                f"trading.max_coefficient {self.max_coefficient:g} is below trading.buy_threshold "
                f"{self.buy_threshold:g}: no agent could ever buy"
            )
        return self


class EnvironmentConfig(Section):
    """A Gymnasium environment that is played: the tasks `gym:...`."""

    episode_steps: Count | None = None
    """Most steps of an episode; empty: the limit that the environment is registered with."""
    normalise_observations: bool = False
    """Observations are normalised by the mean and the variance of all that the population has observed in training;
    updated once a generation. The first generation plays without and learns with its own."""
    normalise_rewards: bool = False
    """Rewards are divided by the standard deviation of all discounted returns before learning, then multiplied by
    `learner.reward_scale`; updated once a generation, before the first one learns."""


_FOLDER = Path(__file__).parents[1] / "market" / "data"
_DEFAULT = _FOLDER / "sp500_20_close_1990_2022.csv.gz"
BUNDLED = {"us5": _FOLDER / "us5_ohlcv_2000_2013_long.csv.gz"}
"""Bundled price files by the name that `market.data` may have."""


def path_of_data(data: str | None) -> Path:
    """Return the path that `config.market.data` names; None: the 20 stocks of the S&P 500.

    Raises:
        InputError: it is blank, or may be bundled prices or a file or folder in the working folder.
    """
    if data is None:
        return _DEFAULT
    if not data.strip():
        raise InputError("market.data is blank: name a price file or a folder, or leave the setting out.")
    if data not in BUNDLED:
        # A home folder that is not known stays as it is written: there is no such file.
        return Path(os.path.expanduser(data))
    if os.path.lexists(data):
        raise InputError(
            f"market.data '{data}' can be read in two ways: the bundled prices, or {Path.cwd() / data}: write "
            f"./{data} for the latter, or rename it to use the bundled prices."
        )
    return BUNDLED[data]


def absolute_data(data: str) -> str:
    """Return `market.data` as it can be used from any folder: the name of bundled prices, or an absolute path."""
    return data if data in BUNDLED else str(Path(os.path.expanduser(data)).absolute())


def own_path(data: str | None) -> str | None:
    """Return `market.data` where it is a path; None where it stands for bundled prices."""
    return None if data in BUNDLED else data
