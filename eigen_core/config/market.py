"""Settings of prices, trading rules and Gymnasium environments."""

import fractions
import os
import re
import zoneinfo
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from eigen_core.common.errors import InputError
from eigen_core.common.text import quoted
from eigen_core.config.instruments import MOST_INSTRUMENTS, instruments_of
from eigen_core.config.registry import (
    Count,
    CountOrZero,
    DateOrBar,
    Duration,
    Fraction,
    NonNegative,
    Positive,
    Section,
    Span,
    SpanOrZero,
    Text,
    seconds_of,
)

Heading = Text | None


class ColumnsConfig(Section):
    """Headings of a price file's columns, if they differ from the defaults below and from known vendors' files."""

    date: Heading = None
    """Heading of the column of dates or timestamps; empty: `date`, `datetime`, `timestamp` or `trade date`."""
    time: Heading = None
    """Heading of a separate column of times of day; empty: `time`."""
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


@dataclass(frozen=True)
class PriceEvent:
    """A decision about the change of a symbol's price to a day (YYYY-MM-DD) or bar (its end), see `market.events`.

    `kind` is `keep`, `drop`, `split`, `ends` or `renamed`; `ratio`: new shares for one old share in a split, else 1.
    """

    symbol: str
    day: str
    kind: str
    ratio: fractions.Fraction

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an event such as `BANK 2022-06-06 split 1:20`; raise ValueError with a sentence if it is none."""
        found = _EVENT.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            symbol, day, kind, new, old = found.groups()
            ratio = fractions.Fraction(int(new or 1), int(old or 1))
            if not ratio or (kind is None) == (ratio == 1):
                raise ValueError
            datetime.fromisoformat(day)
            return cls(symbol, day, kind or "split", ratio)
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"market.events: {quoted(text)} is no event: write a symbol, a day and keep, drop, ends, renamed "
                "or split NEW:OLD, as in BANK 2022-06-06 split 1:20"
            ) from None

    @property
    def name_before(self) -> str:
        """Name of the earlier of two assets that have had the same name (`renamed`)."""
        return f"{self.symbol}_before_{self.day}"

    def __str__(self) -> str:
        split = f"split {self.ratio.numerator}:{self.ratio.denominator}"
        return f"{self.symbol} {self.day} {split if self.kind == 'split' else self.kind}"


_EVENT = re.compile(
    r"(\S.*) (\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d)?) (?:(keep|drop|ends|renamed)|split (\d{1,6}):(\d{1,6}))", re.ASCII
)


class MarketConfig(Section):
    """Prices, features and the split of days."""

    data: Text | None = None
    """Price file or folder: CSV, Parquet or Feather, one file, or a folder with one file a symbol; or `us5`, the
    bundled bars of five US stocks, 2000-2013. Empty: the bundled 20 S&P 500 stocks, 1990-2022."""
    layout: Literal["long", "wide"] = "long"
    """`long`: one row a symbol and day. `wide`: one row a day, and each column but the date has the closes of one
    symbol; files with the headings of the long layout or of a known vendor are read as long nevertheless."""
    symbols: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Tradable symbols to read, in addition to those of `market.context`; empty: all that the data have."""
    symbol_from: Text | None = None
    """Pattern by which file names contain the symbol, such as `{symbol}-1d-{part}.csv`; `{part}` stands for text that
    begins with a digit, such as a month. Empty: the name of a file without a symbol column is the symbol."""
    date_format: Text | None = None
    """Format of dates: directives of strftime such as `%d.%m.%Y`, or `s`, `ms`, `us`, `ns` for a count since 1970.
    Empty: `2024-12-31`, with or without a time of day and a time zone, `20241231`, or a count of milliseconds,
    microseconds or nanoseconds (13, 16 or 19 digits)."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark of numbers; the other mark may separate thousands. Empty: a point, or a comma if the numbers in the
    file show it."""
    suspicious: Literal["refuse", "drop", "keep"] = "refuse"
    """Whether prices that no row proves end with an error (`refuse`) or are used (`keep`): a factor of three and back,
    a jump like a split or by a factor of five, a close of zero or below, a symbol's day twice with different prices, a
    loss of 99 % on the last day. `drop` leaves out rows after which the price comes back, and refuses the others."""
    events: Annotated[tuple[Text, ...], Field(max_length=1_000, fail_fast=True, strict=False)] = ()
    """Decisions about single changes of price, each a symbol, a day and one of: `keep` (the price is right), `drop`
    (leave out the row; the price must come back), `split NEW:OLD` (NEW shares for OLD ones: earlier prices are
    multiplied by OLD/NEW, volumes by NEW/OLD), `ends` (the symbol ends on the day before) and `renamed` (from that day
    on another asset has the name); for example `BANK 2022-06-06 split 1:20`."""
    instruments: Annotated[tuple[Text, ...], Field(max_length=MOST_INSTRUMENTS, fail_fast=True, strict=False)] = ()
    """Costs and order rules of each symbol, in place of the single rates in `trading`: on the command line a CSV file
    with a row a symbol, whose rows become this setting, or texts such as `BTC cost_bps=10 lot_size=0.001`."""
    context: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Symbols that agents observe but cannot trade (an index, a rate)."""
    levels: Annotated[tuple[Text, ...], Field(max_length=100_000, fail_fast=True, strict=False)] = ()
    """Symbols of `market.context` that are no prices but levels, which may be zero or negative (a spread, a rate):
    agents observe their closes as the feature `level`, and no other feature of them."""
    features: Literal["returns", "classic", "columns"] = "returns"
    """Feature set: `returns` does not depend on the price level; `classic` is the nine features of the system that
    Eigen replaces; `columns` is only the numeric columns that the files have besides prices and volume."""
    own_features: Annotated[tuple[Text, ...], Field(max_length=1_000, fail_fast=True, strict=False)] = ()
    """Further features: `columns` (as above), and names of functions registered as entry points of `eigen.features`."""
    look_ahead: Literal["refuse", "allow"] = "refuse"
    """Whether to refuse or allow feature functions whose values on a day change when prices of later days do."""
    bar: Literal["auto", "1m", "5m", "15m", "30m", "1h", "4h", "1d"] = "auto"
    """Length of a bar; shorter ones are aggregated (first open, highest high, lowest low, last close, summed volume),
    to `1d` from midnight to midnight in the exchange's time zone. `auto`: the length of the data."""
    bar_stamp: Literal["open", "close"] | None = None
    """Whether timestamps of bars within a day mark the open or the close of their bar. Agents decide at its close.
    Empty: as the data's vendor writes them; without a known vendor bars within a day are refused."""
    time_zone: Text | None = None
    """The exchange's time zone, such as `America/New_York`, in which the day of a timestamp with a time zone is taken.
    Empty: it is the date that the timestamp shows; timestamps in UTC must then be at midnight."""
    calendar: Text = "prices"
    """Sessions of the assets' market: those that prices show (`prices`), or also those of an exchange, such as `XNYS`,
    or of all days, `24/7`. A price on a day on which the exchange is closed is a session too."""
    session: Literal["regular", "all"] = "all"
    """Whether bars before the open and after the close of `market.calendar` are used (`all`) or left out."""
    window: Annotated[int, Field(ge=1, le=5_000)] = 64
    """Bars that an agent observes, the latest included (bars)."""
    validation: Span = 252
    """Bars on which the champion is chosen, the best agent, after the training bars: their number, or a time such as
    `60d`, which is that of the calendar (bars)."""
    holdout: SpanOrZero = 251
    """Last bars of the data, on which the champion is judged once, after training: their number, or a time (bars)."""
    purge: SpanOrZero = 0
    """Bars left out between training and validation, and as many between validation and any holdout: their number, or
    a time (bars)."""
    groups: Annotated[int, Field(ge=2, le=100)] | None = None
    """Number of groups of consecutive bars, alike in length, of which `market.test_groups` are left out of training."""
    test_groups: Annotated[tuple[CountOrZero, ...], Field(max_length=99, fail_fast=True, strict=False)] = ()
    """Numbers, from 0, of the groups that test agents of a cross-validation (`eigen sweep --cv` sets them). Training
    leaves out `market.purge` bars on both sides of them, and validation takes the last bars of the other groups."""
    embargo: SpanOrZero = 0
    """Further bars after each test group that training leaves out: their number, or a time (bars)."""
    first_date: DateOrBar | None = None
    """First date (or end of a bar) of the prices that are used. Empty: that of the data."""
    last_date: DateOrBar | None = None
    """Last date (or end of a bar) of the prices that are used. Empty: that of the data."""
    columns: ColumnsConfig = ColumnsConfig()
    """Headings of a file's columns, if they differ from the defaults and from known vendors' files."""

    @property
    def uses_columns(self) -> bool:
        """Whether the numeric columns that the files have besides prices and volume are features."""
        return "columns" in (self.features, *self.own_features)

    @property
    def price_events(self) -> tuple[PriceEvent, ...]:
        """The decisions in `events`."""
        return tuple(map(PriceEvent.parse, self.events))

    @field_validator("events")
    @classmethod
    def _events_are_decisions(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        each = Counter((event.symbol, event.day) for event in map(PriceEvent.parse, events))
        if (most := each.most_common(1)) and most[0][1] > 1:
            raise ValueError(f"market.events decides twice about {' '.join(most[0][0])}: decide once")
        return events

    @field_validator("instruments")
    @classmethod
    def _instruments_are_rows(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        instruments_of(texts, ())
        return texts

    @field_validator("symbol_from")
    @classmethod
    def _pattern_has_a_symbol(cls, pattern: str | None) -> str | None:
        if pattern is not None and pattern.count("{symbol}") != 1:
            raise ValueError(f"market.symbol_from {quoted(pattern)} must have {{symbol}} once, as in {{symbol}}-1d.csv")
        return pattern

    @model_validator(mode="after")
    def _groups_are_tested(self) -> Self:
        tested, groups = set(self.test_groups), self.groups or 0
        if self.groups is None:
            if tested:
                raise ValueError("market.test_groups needs groups: set market.groups")
        elif not 0 < len(tested) < groups or len(tested) < len(self.test_groups) or max(tested) >= groups:
            raise ValueError(
                f"market.test_groups {list(self.test_groups)} must be some, but not all, of the groups 0 to "
                f"{groups - 1}, each once"
            )
        elif self.holdout != 0:
            raise ValueError("market.test_groups stand in place of a holdout: set market.holdout to 0")
        return self

    @model_validator(mode="after")
    def _levels_are_context(self) -> Self:
        if tradable := sorted({*self.levels} - {*self.context}):
            raise ValueError(
                f"market.levels names {quoted(tradable[0])}, which market.context lacks: add it there, since "
                "agents cannot trade a level"
            )
        return self

    @model_validator(mode="after")
    def _session_has_a_calendar(self) -> Self:
        if self.session == "regular" and self.calendar == "prices":
            raise ValueError(
                "market.session is regular, and prices do not show opens and closes: set market.calendar to the "
                "exchange's, such as XNYS"
            )
        return self

    @model_validator(mode="after")
    def _time_zone_is_known(self) -> Self:
        try:
            zoneinfo.ZoneInfo(self.time_zone or "UTC")
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"market.time_zone {quoted(self.time_zone)} is no time zone: name one like America/New_York, or UTC"
            ) from error
        return self


class TradingConfig(Section):
    """Rules of trading and of its reward, in episodes of the task `market`; `portfolio` uses some of them."""

    trading_bars: Count = 125
    """Bars of an episode after which positions may be opened (bars)."""
    settlement_bars: CountOrZero = 20
    """Bars after the trading bars, on which positions can only close (bars)."""
    holding_bars: Count = 20
    """Longest time from the decision to buy to the sale, in bars on which the symbol's market is open (bars)."""
    decide_every: Duration | None = None
    """Agents buy only after closes at multiples of this time since midnight in UTC, such as `6h`. Between these they
    observe, and orders and accounts go on from bar to bar. Empty: after every close. With task `market`."""
    buy_threshold: NonNegative = 1.0
    """Smallest coefficient (an agent's first output for each asset) at which the asset is bought."""
    purchases_per_bar: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Purchases per decision, of the assets with the highest rank. If one of them is held already, it lapses."""
    rank: Literal["coefficient", "separate"] = "coefficient"
    """Rank of an asset on a day. `coefficient`: its coefficient; `separate`: a third output of the agent per asset;
    the coefficient then only decides whether and how much to buy."""
    max_coefficient: Positive | None = 3.0
    """Bound of the coefficient, which is also the size of a position; empty: unbounded (the classic rule)."""
    min_target: Positive = 0.10
    """Smallest sale target: gain at which a position is sold, as a fraction of its purchase price."""
    max_target: Positive = 0.50
    """Largest sale target, as a fraction of the purchase price."""
    fill: Literal["next_open", "next_close", "same_close"] = "next_open"
    """Fill price of an order: the next day's open (its close if there is no open), the next day's close, or the close
    of the decision's day (the classic rule, which no real order can reach). If the symbol does not trade, a purchase
    lapses, and a sale waits for the symbol's next fill."""
    delisting_bars: Count = 60
    """A symbol counts as delisted after this many bars without a price on which its market is open (bars)."""
    delisting_loss: Fraction | None = 0.3
    """Loss on a position in a delisted symbol, as a fraction of its last close. Empty: a symbol that has no price on a
    day after its first is an error; older runs, which could sell positions without a price, keep this empty."""
    credit: Literal["decision", "realized", "marked"] = "decision"
    """Day of a trade's reward. `decision`: day of the decision to buy; `realized`: day of the sale (the classic rule);
    `marked`: every day, by marking the position to market."""
    bookkeeping: Literal["exact", "classic"] = "exact"
    """`exact`: agents choose among assets with a price, a sale waits for a price, a gain of zero is no win, a day that
    ends without a position is idle. `classic`, as in the system that Eigen replaces: choosing an asset without a price
    buys nothing, a position closes at its entry price on the first day without any price or on its last day without a
    close, a gain of zero is a win, a day on which a position closes is not idle."""
    cost_bps: NonNegative = 5.0
    """Transaction cost of a purchase and of a sale, each (basis points of its value)."""
    slippage_bps: NonNegative = 2.0
    """Slippage of market orders: a purchase and a sale at the close, but not a sale at the target (basis points)."""
    loss_multiplier: Positive = 10.0
    """Factor on losses in the reward; gains have none."""
    idle_penalty: NonNegative = 0.0
    """Penalty for each day that ends without a position (reward)."""
    no_trade_penalty: NonNegative = 100.0
    """Penalty for an episode without a trade, on the last day on which a position may be opened; with classic
    bookkeeping on the last day of the episode (reward)."""
    observe_portfolio: bool = True
    """Whether agents observe their portfolio (held, days held, unrealised gain, coefficient) and the episode's time."""

    ordered = (
        ("trading.min_target", "trading.max_target", "swap them"),
        ("trading.holding_bars", "trading.settlement_bars", "the last positions could not close inside their episode"),
        ("trading.buy_threshold", "trading.max_coefficient", "no agent could ever buy"),
    )

    @property
    def seconds_between_decisions(self) -> int | None:
        """The seconds of `decide_every`."""
        return None if self.decide_every is None else seconds_of(self.decide_every)

    @property
    def episode_bars(self) -> int:
        """Bars of an episode: trading and settlement."""
        return self.trading_bars + self.settlement_bars

    @property
    def no_trade_step(self) -> int:
        return (self.episode_bars if self.bookkeeping == "classic" else self.trading_bars) - 1

    @model_validator(mode="after")
    def _rules_agree(self) -> Self:
        if self.bookkeeping == "classic" and self.rank == "separate":
            raise ValueError(
                "trading.rank is separate, but trading.bookkeeping classic ranks by coefficient: use rank coefficient, "
                "or bookkeeping exact"
            )
        if self.bookkeeping == "classic" and self.purchases_per_bar > 1:
            raise ValueError(
                f"trading.purchases_per_bar is {self.purchases_per_bar}, but trading.bookkeeping classic buys one "
                "asset a day: use 1, or bookkeeping exact"
            )
        return self


class EnvironmentConfig(Section):
    """Settings of Gymnasium environments, the tasks `gym:...`."""

    episode_steps: Count | None = None
    """Step limit of an episode; empty: the limit that the environment is registered with in Gymnasium."""
    normalise_observations: bool = False
    """Whether to normalise observations by the mean and variance of all training observations of the population, which
    are updated once a generation; the first generation plays without normalisation."""
    normalise_rewards: bool = False
    """Whether to divide rewards by the standard deviation of all discounted returns, which is updated once a
    generation, before `learner.reward_scale` multiplies them."""


_FOLDER = Path(__file__).parents[1] / "market" / "data"
_DEFAULT = _FOLDER / "sp500_20_close_1990_2022.csv.gz"
BUNDLED = {"us5": _FOLDER / "us5_ohlcv_2000_2013_long.csv.gz"}
"""Paths of the bundled price files that `market.data` can name."""


def path_of_data(data: str | None) -> Path:
    """Return the path of `market.data` (None: the bundled S&P 500 stocks); `InputError` if it is blank or ambiguous."""
    if data is None:
        return _DEFAULT
    if not data.strip():
        raise InputError("market.data is blank: name a price file or a folder, or leave the setting out.")
    if data not in BUNDLED:
        return Path(os.path.expanduser(data))
    if os.path.lexists(data):
        raise InputError(
            f"market.data '{data}' can be read in two ways: the bundled prices, or {Path.cwd() / data}: write "
            f"./{data} to read the file or folder, or rename it to read the bundled prices."
        )
    return BUNDLED[data]


def absolute_data(data: str) -> str:
    """Return `market.data` as an absolute path; names of bundled prices, and URLs (refused later), are unchanged."""
    return data if data in BUNDLED or "://" in data else str(Path(os.path.expanduser(data)).absolute())


def own_path(data: str | None) -> str | None:
    """Return `market.data` if it is a path; None if it is None or a name of bundled prices."""
    return None if data in BUNDLED else data
