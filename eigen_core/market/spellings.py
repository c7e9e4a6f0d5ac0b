"""The words that headings are known by, without case, spaces and punctuation."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Role = Literal["date", "time", "symbol", "open", "high", "low", "close", "adjusted_close", "volume"]

PRICE_ROLES: tuple[Role, ...] = ("open", "high", "low", "close", "adjusted_close", "volume")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_IDENTIFIERS = _words(
    "symbol ticker tic sym ric code instrument asset security sec stock company issuer scrip sc isin cusip sedol figi "
    "wkn permno gvkey contract fund bond coin pair commodity"
)
_IDENTIFIER_ENDINGS = ("", "symbol", "ticker", "code", "id", "identifier", "key", "number", "no")
_COMPANY_NAMES = ("tickername", "companyname", "securityname", "stockname", "name")

# The earlier spelling wins where a file has several: a file with `ticker` and `name` has the company's name in the
# latter.
SPELLINGS: dict[Role, tuple[str, ...]] = {
    "date": ("date", "datetime", "timestamp", "tradedate", "tradingdate", "windowstart", "day", "time"),
    # Beside a column of dates.
    "time": ("time", "timeofday", "tradetime", "bartime"),
    "symbol": (
        "tradingsymbol",
        *(identifier + ending for identifier in _IDENTIFIERS for ending in _IDENTIFIER_ENDINGS),
        *_COMPANY_NAMES,
    ),
    "open": ("open", "openprice", "openingprice"),
    "high": ("high", "highprice", "dayhigh"),
    "low": ("low", "lowprice", "daylow"),
    "close": ("close", "closeprice", "closingprice", "closelast", "last", "lastprice", "price"),
    "adjusted_close": ("adjclose", "adjustedclose", "closeadj", "closeadjusted", "adjcloseprice"),
    "volume": ("volume", "vol", "tradedvolume", "sharevolume"),
}

# A close where the file has no other column of numbers; some are tickers too.
VALUES = ("settle", "settlement", "settlementprice", "settleprice", "pxlast", "nav", "navpershare", "value", "level")

_ROW_NUMBERS = frozenset(("index", "id", "row", "rownumber"))

_FIELD_HEADINGS = frozenset(("field", "fieldname", "variable", "measure", "metric", "attribute", "item", "pricetype"))

# What stands beside prices and is neither a price nor a symbol; digits do not count (`sma20`).
_COMPANIONS = frozenset(
    _words(
        "dividend dividends exdividend dividendamount split splits stocksplits splitratio splitfactor "
        "splitcoefficient capitalgains change changepercent percentchange pctchange netchange chg chgpct return "
        "returns ret logreturn logreturns dailyreturn vwap avg average averageprice typicalprice mid bid ask spread "
        "trades tradecount numberoftrades totaltrades transactions turnover amount tradedvalue openinterest "
        "previousdayopeninterest oi marketcap mktcap sharesoutstanding factor adjfactor adjustmentfactor prevclose "
        "previousclose adjopen adjhigh adjlow adjvolume exchange currency id index row rownumber weekday dayofweek dow "
        "dayofmonth dayofyear month year quarter week weekofyear weeknumber holiday isholiday sma ema wma rsi macd atr "
        "adx cci obv mfi roc bollinger bbupper bblower momentum volatility sigma beta alpha"
    )
)

_CLOSING = frozenset(
    (*SPELLINGS["close"], *SPELLINGS["adjusted_close"], *VALUES, "totalreturn", "adjusted", "adj", "px", "eod")
)
_BUT_CLOSES: tuple[Role, ...] = ("open", "high", "low", "volume")
_OTHER_FIELDS = frozenset(
    (
        *(spelling for role in _BUT_CLOSES for spelling in SPELLINGS[role]),
        *_words("dividend dividends split splits stocksplits return returns ret logreturn change pctchange chg vwap"),
        *_words("turnover bid ask mid trades marketcap openinterest adjopen adjhigh adjlow adjvolume"),
    )
)

_GLUED_FIELD = re.compile(r"(?<=[A-Z0-9])(?=(?:Open|High|Low|Close|Vol|Volume|Adj)$)")


def plain(heading: str) -> str:
    """Return a heading without case, spaces and punctuation."""
    return re.sub(r"[^0-9a-z]", "", heading.lower())


def is_companion(heading: str) -> bool:
    """Return whether a column beside prices is usually called so that holds neither a price nor a symbol."""
    return plain(heading) in _COMPANIONS or re.sub(r"\d", "", plain(heading)) in _COMPANIONS


def is_usual(heading: str) -> bool:
    """Return whether a column is usually called so that holds dates, symbols, prices, volumes or numbers of rows."""
    word = plain(heading)
    return word in _ROW_NUMBERS or any(word in spellings for spellings in SPELLINGS.values())


def split_fields(headings: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return symbol and field, plain, of those of a wide file's headings that are like `AAA volume` or `Close AAA`.

    What begins with a field's name is one of these only if another heading says so: `LOW.N` is a symbol, `Low AAA`
    beside `AAA` or `High AAA` is none.
    """
    found: dict[str, tuple[str, str]] = {}
    begun: dict[str, tuple[str, str]] = {}
    for heading in headings:
        tokens = _tokens(heading)
        for count in (2, 1):
            first, last = plain("".join(tokens[:count])), plain("".join(tokens[-count:]))
            if len(tokens) > count and last in _CLOSING | _OTHER_FIELDS:
                found[heading] = plain("".join(tokens[:-count])), last
                break
            if len(tokens) > count and first in _CLOSING | _OTHER_FIELDS:
                begun[heading] = plain("".join(tokens[count:])), first
                break
    shared = Counter([*(symbol for symbol, _ in begun.values()), *map(plain, headings)])
    everywhere = len(begun) == len(headings)
    return found | {heading: split for heading, split in begun.items() if everywhere or shared[split[0]] > 1}


def names_fields(heading: str) -> bool:
    """Return whether a column is usually called so that says which price a row holds."""
    return plain(heading) in _FIELD_HEADINGS


def is_closing(word: str) -> bool:
    """Return whether a plain word names a day's last price."""
    return word in _CLOSING


def _tokens(heading: str) -> list[str]:
    return [token for token in re.split(r"[^0-9A-Za-z&^=]+", _GLUED_FIELD.sub(" ", heading)) if token]
