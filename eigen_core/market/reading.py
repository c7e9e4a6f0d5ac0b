"""Find the price files of a source and read them as rows; the settings or the headings determine the columns."""

import csv
import gzip
import hashlib
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from eigen_core.common.errors import InputError, UnavailableError
from eigen_core.common.files import open_regular_file
from eigen_core.common.text import size
from eigen_core.config import MarketConfig
from eigen_core.config.market import path_of_data
from eigen_core.market import formats
from eigen_core.market.arrow_tables import read_table
from eigen_core.market.formats import ALIASES, BAR, PRICE_ROLES, LayoutError, Role, clean_text, heading_key

MEMORY_PER_BYTE = 9
"""Bytes of memory that building a panel takes at its peak, per byte of uncompressed text. Measured: 6.3 to 8.7 bytes of
resident memory, in separate processes, for files of 15 to 120 MB."""
WIDE_MEMORY_PER_BYTE = 26
"""The same for the wide layout with 6 bytes per cell. Measured: 22.3 to 23.8 for files of 61 and 21 MB."""
# Smaller needs are not checked: torch alone takes more.
_LEAST_BYTES = 200_000_000

_GZIP = b"\x1f\x8b"
_FORMS = {
    "csv": r"\.(csv|tsv|txt)",
    "parquet": r"\.(parquet|pq)",
    "arrow": r"\.(feather|arrow|ipc)",
    "json": r"\.json",
}
# A .txt file in a folder is a price file only if it begins like Stooq's files, old or new.
_TEXT_OF_PRICES = (b"<TICKER>", b"Date,Open,High,Low,Close,Volume,OpenInt")
_ADVICE = "give CSV or Parquet, which spreadsheets and databases export; name subfolders of prices like symbol=AAPL."
# freqtrade's files are named like BTC_USDT-1d.feather, those of Binance's archive like BTCUSDT-1d-2024-06.csv.
_LENGTH_OF_BARS = r"-(\d+[smhdwM])(-spot|-\d{4}-\d\d(-\d\d)?)?$"
# freqtrade's folder of futures holds other series, too.
_OTHER_SERIES = r".+-\d+[smhdwM]-(futures|mark|index|premiumIndex|funding_rate)\..+"
_FUTURES, _NO_FUNDING = "*-futures.*", "futures, whose funding Eigen does not model"
# Symbols: AAPL, BRK-B, 0700.HK, ^GSPC, BTC-USD, aapl.us. A name with a space, an underscore, a number after a hyphen or
# a year before or after letters may be a part of a symbol's history.
_NO_PART = r"(?!.*([-.][^\W\d_]*\d|[^\W\d](19|20)\d\d))(?!(19|20)\d\d-?[^\W\d])(?!(part|data|chunk)\W?\d)"
_CURRENCY = r"[-_](USDT?|USDC|BUSD|FDUSD|TUSD|DAI|EUR|GBP|JPY|KRW|TRY|BRL|BTC|ETH|BNB)"
_SYMBOL = _NO_PART + rf"\^?[^\W_]+(([-.^=&!$+][^\W_]*)*|{_CURRENCY}{{1,2}})"

Partition = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SourceFile:
    """A price file.

    Attributes:
        form: `csv`, `parquet`, `arrow` (also Feather) or `json` (a list of rows).
        symbol: symbol in the file's name, used if the file has no column of symbols; empty if the name has none.
        sha256: of the file's bytes, before decompression.
        partition: key and value of each parent folder that is named `key=value`.
    """

    path: Path
    form: str
    symbol: str
    sha256: str
    partition: Partition = ()

    @property
    def stem(self) -> str:
        return re.sub(r"\.gz$", "", self.path.name, flags=re.IGNORECASE).rpartition(".")[0]

    @property
    def bar(self) -> str:
        """Length of the bars by the file's name, such as `5m`; empty if the name has none."""
        found = re.search(_LENGTH_OF_BARS, self.stem)
        return found[1] if found else ""

    @property
    def name(self) -> str:
        return "/".join([*(f"{key}={value}" for key, value in self.partition), self.path.name])

    def read(self, most: int) -> bytes:
        """Return the decompressed content, but at most `most` + 1 bytes of it; `InputError` if the file is unreadable,
        damaged or not that of `sha256`."""
        try:
            with open_regular_file(self.path) as file:
                content = file.read()
            if hashlib.sha256(content).hexdigest() != self.sha256:
                raise InputError(f"{self.path} changed while it was read: start again when it is complete.")
            if not content.startswith(_GZIP):
                return content
            return gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.path} is damaged: it cannot be decompressed ({error}).") from error
        except OSError as error:
            raise InputError(_unreadable(self.path, error)) from error


@dataclass(frozen=True)
class Source:
    """A file or folder that `market.data` names: its price files sorted by name, and the names of its other files."""

    path: Path
    files: tuple[SourceFile, ...]
    ignored: tuple[str, ...] = ()

    @property
    def hashes(self) -> list[tuple[str, str]]:
        """Name and SHA-256 of each price file."""
        return [(file.name, file.sha256) for file in self.files]


def find_source(market: MarketConfig) -> Source:
    """Find and hash the price files of `market.data`; `InputError` if there are none or they cannot be read."""
    path, symbol_from = path_of_data(market.data), market.symbol_from
    try:
        if path.is_dir():
            files, ignored = _files_in(path, (), symbol_from)
            if not files and any(_NO_FUNDING in name for name in ignored):
                raise InputError(f"The folder {path} holds only {_NO_FUNDING}: give prices of spot markets.")
            if not files:
                raise InputError(f"The folder {path} holds no price file: {_ADVICE}")
            if len(lengths := sorted({file.bar for file in files if file.bar})) > 1:
                if market.bar not in lengths:
                    held = f"The folder {path} holds bars of {', '.join(lengths)}"
                    raise InputError(f"{held}: set market.bar to one of these.")
                ignored += [file.path.name for file in files if file.bar not in ("", market.bar)]
                files = [file for file in files if file.bar in ("", market.bar)]
            return Source(path, tuple(files), tuple(ignored))
        if not path.exists():
            raise UnavailableError(
                f"There is no file or folder {path}: give a CSV or Parquet file or a folder of them."
            )
        if not _form_of(path):
            raise InputError(f"{path} is no price file: {_ADVICE}")
        if path.match(_FUTURES):
            raise InputError(f"{path} holds {_NO_FUNDING}: give prices of spot markets.")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device: give a file or a folder of files.")
        return Source(path, (_source_file(path, (), symbol_from, alone=True),))
    except OSError as error:
        raise UnavailableError(_unreadable(path, error)) from error


def symbol_in(name: str, symbol_from: str) -> str:
    """Return the symbol in a file's name by a pattern like `{symbol}-1d-{part}.csv`; empty if it does not match."""
    pattern = re.sub(r"^\\{part\\}", r"\\d[-_.\\d]*", re.escape(symbol_from)).replace(r"\{part\}", r"\d.*?")
    pattern = pattern.replace(r"\{symbol\}", "(?P<symbol>.+?)")
    found = re.fullmatch(pattern, name, re.IGNORECASE)
    return found["symbol"] if found else ""


def _unreadable(path: Path, error: OSError) -> str:
    return f"{error.filename or path} cannot be read ({error.strerror}): check the name and the permissions."


def _source_file(path: Path, partition: Partition, symbol_from: str | None, alone: bool = False) -> SourceFile:
    stem = Path(re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)).stem
    named = stem if _form_of(path) == "csv" else re.sub(_LENGTH_OF_BARS, "", stem)
    is_text = path.suffix.lower() == ".txt"
    is_symbol = alone or (not partition and (is_text or named != stem or re.fullmatch(_SYMBOL, stem, re.IGNORECASE)))
    symbol = named if is_symbol else ""
    if symbol_from is not None and not (symbol := symbol_in(path.name, symbol_from)):
        raise InputError(f"{path} does not match market.symbol_from={symbol_from}: rename it or change the setting.")
    with open_regular_file(path) as file:
        return SourceFile(path, _form_of(path), symbol, hashlib.file_digest(file, "sha256").hexdigest(), partition)


def _files_in(folder: Path, partition: Partition, symbol_from: str | None) -> tuple[list[SourceFile], list[str]]:
    files: list[SourceFile] = []
    ignored: list[str] = []
    for entry in sorted(folder.iterdir()):
        key, divided, value = entry.name.partition("=")
        if _is_price_file(entry):
            files.append(_source_file(entry, partition, symbol_from))
        elif key and divided and entry.is_dir():
            inner, others = _files_in(entry, (*partition, (key, value)), symbol_from)
            files += inner
            ignored += [f"{entry.name}/{other}" for other in others]
        else:
            has_futures = entry.match(_FUTURES) or (entry.is_dir() and any(entry.glob(_FUTURES)))
            ignored.append(f"{entry.name} ({_NO_FUNDING})" if has_futures else entry.name)
    if not files and not partition:
        # Archives of text files have folders of any depth and name.
        texts = {path: _is_price_file(path) for path in sorted(folder.rglob("*.txt"))}
        files = [_source_file(path, (), symbol_from) for path, is_price in texts.items() if is_price]
        places = {path.relative_to(folder).parts[0] for path, is_price in texts.items() if is_price}
        others = [str(path.relative_to(folder)) for path, is_price in texts.items() if not is_price]
        ignored = [name for name in ignored if name not in places] + (others if files else [])
    return files, ignored


def _is_price_file(path: Path) -> bool:
    if path.name.startswith(".") or not _form_of(path) or not path.is_file() or re.fullmatch(_OTHER_SERIES, path.name):
        return False
    if _form_of(path) == "json":
        return re.fullmatch(r".+-\d+[smhdwM]\.json(\.gz)?", path.name) is not None
    if path.suffix.lower() != ".txt":
        return True
    with open_regular_file(path) as file:
        return file.read(max(map(len, _TEXT_OF_PRICES))).startswith(_TEXT_OF_PRICES)


def _form_of(path: Path) -> str:
    forms = (form for form, ending in _FORMS.items() if re.fullmatch(rf".+{ending}(\.gz)?", path.name, re.IGNORECASE))
    return next(forms, "")


OWN = "own column "
"""Prefix of the other numeric columns in `FileRows.rows`; their headings alone may equal the role of a price."""

_NO_VALUES = "na n/a #n/a nan -nan null none - -- . <na> nat #div/0! #value! #ref! #name? #num! #null!"
_MARKERS = frozenset(("", *_NO_VALUES.split()))
# Cells without a value, in the usual spellings: pandas compares them case-sensitively.
_MISSING = sorted({spelling for marker in _MARKERS for spelling in (marker, marker.upper(), marker.title(), "NaN")})
_TEXT_ROLES: tuple[Role, ...] = ("date", "time", "symbol")
_SEPARATORS = (",", ";", "\t", "|")
_TWO_HEADINGS = re.compile(r"""\(('[^'\\]*'|"[^"\\]*"), ('[^'\\]*'|"[^"\\]*")\)""")
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_UNREADABLE = {
    "csv": "is no CSV file: it is neither UTF-8 nor UTF-16 text. Save it in UTF-8, or give a Parquet file.",
    "parquet": "is no Parquet file, or a damaged one: write it again, or give a CSV file.",
    "arrow": "is no Arrow or Feather file, or a damaged one: write it again, or give a CSV file.",
    "json": "is no JSON list of rows of numbers, such as freqtrade writes: give a CSV file.",
}
_TWO_MARKS = (
    "says whether this is less than 2 or more than 1,000: say which is the decimal mark, `--set market.decimal=.` or "
    "`--set market.decimal=,`."
)
_OTHER_MARK = {".": ",", ",": "."}
_MORE_CELLS = " has rows with more cells than it has headings: give each column a heading."
_PANDAS_NOTES = ("index_columns", "column_indexes")
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_REPEATED, _MOST_LOST, _FEW_LOST, _FEW_WRONG, _CELLS_TO_JUDGE_BY = 0.2, 0.05, 2, 10, 1_000
_ROW_NUMBERS = ("index", "id", "row", "rownumber")


@dataclass(frozen=True)
class FileRows:
    """The rows of the file `name`, in layout `long` or `wide`.

    Attributes:
        rows: columns `code`, index into `symbols`; `timestamp` and `offset` from `parse_dates`; and, in float64 with
            NaN for missing cells, prices by role and other numeric columns with the prefix `OWN`.
        read, undated: number of rows read, and of those dropped because they lack a date or symbol.
        ignored: headings of unused columns, and keys of unused partitions.
        vendor: the vendor whose headings the file has; None: the long or wide layout.
    """

    name: str
    layout: str
    symbols: tuple[str, ...]
    rows: pd.DataFrame
    read: int
    undated: int
    ignored: tuple[str, ...]
    vendor: formats.Vendor | None


def read_source(source: Source, market: MarketConfig, available: int) -> Iterator[FileRows]:
    """Read the files of `source` one after another.

    Raises:
        InputError: a file is damaged, or its columns are unknown; or all take more than the `available` memory (bytes),
            by their sizes, by what Parquet and Arrow files say, and by what gzip has decompressed so far.
    """
    per_byte = WIDE_MEMORY_PER_BYTE if market.layout == "wide" else MEMORY_PER_BYTE
    most = max(available, _LEAST_BYTES) // per_byte

    def require_memory(text: int) -> None:
        if text > most:
            raise InputError(
                f"{source.path} holds {size(text)} of prices or more: reading them takes about "
                f"{size(text * per_byte)} of memory, but only {size(available)} is available. Give fewer days or "
                "symbols, or more memory."
            )

    def require_table(taken: int) -> None:
        require_memory(read + taken)

    require_memory(sum(file.path.stat().st_size for file in source.files))
    read = 0
    for file in source.files:
        try:
            content = file.read(most - read)
            require_memory(read + len(content))
            if file.form == "json":
                content = _lines_of_json(content)
            if file.form in ("csv", "json"):
                table, taken = _csv_table(content, file, market), len(content)
            else:
                stored = read_table(content, file.form, require_table)
                table, taken = _arrow_table(stored, file, market), max(len(content), stored.nbytes)
                del stored
            read += taken
            del content
            rows = table.rows()
        except LayoutError as error:
            raise InputError(f"{file.path}{error}") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file.path} {_UNREADABLE[file.form]}") from error
        except csv.Error as error:
            words = f"has no headings in its first line ({error}): write short ones there."
            raise InputError(f"{file.path} {words}") from error
        except pd.errors.ParserWarning as error:
            raise InputError(f"{file.path}{_MORE_CELLS}") from error
        except pd.errors.ParserError as error:
            reason = str(error).removeprefix("Error tokenizing data. C error: ").strip().rstrip(".")
            raise InputError(f"{file.path} cannot be read as CSV ({reason}): correct or export it again.") from error
        yield rows


@dataclass
class _Table:
    """A file's headings (`tickers`: a second line) and cells; `row_word` and `first_row` name the first in messages.

    `decimal` is the decimal mark of numbers that are text, in which the other mark may separate thousands; None: these
    have a decimal point, and nothing separates thousands.
    """

    file: SourceFile
    market: MarketConfig
    names: tuple[str, ...]
    tickers: tuple[str, ...]
    cells: pd.DataFrame
    row_word: str = "row"
    first_row: int = 1
    decimal: str | None = None
    used: formats.Columns = field(default_factory=lambda: formats.Columns({}, ()))

    def rows(self) -> FileRows:
        if not len(self.cells):
            raise LayoutError(" has headings but no rows: give a file with dates and prices.")
        unused = [key for key, value in self.file.partition if not self._add_partition(key, value)]
        names = (*dict.fromkeys(self.names), "Ticker") if self.tickers else self.names
        used = formats.columns_of(names, self.market, self.file.stem)
        if used is None:
            raise LayoutError(
                f" has the columns {formats.list_headings(names)}, which are neither those of the long layout (date, "
                "symbol, open, high, low, close, volume) nor those of a known vendor: name its columns in "
                "market.columns.date, market.columns.close and so on, or set market.layout=wide if each column but the "
                "date has the closes of a symbol."
            )
        self.used = used
        timestamps = self._timestamps()
        kept = timestamps["timestamp"].notna()
        own = [place for place in used.others if self._is_own(self.names.index(names[place]))]
        columns: dict[str, int] = {role: used.roles[role] for role in PRICE_ROLES if role in used.roles}
        columns |= {OWN + clean_text(names[place]): place for place in own}
        blocks, codes = {"": columns}, None
        if "close" not in columns:
            wanted = {*self.market.symbols, *self.market.context}
            own = [place for place in used.others if not self.market.symbols or clean_text(names[place]) in wanted]
            blocks = {clean_text(names[place]): {"close": place} for place in own}
            if not own:
                raise LayoutError(
                    f" has no column that market.symbols names; it has {formats.list_headings(names)}: correct the "
                    "setting."
                )
        elif self.tickers:
            pairs = list(zip(self.tickers, self.names[1:], strict=True))
            places = {key: place for place, key in enumerate(pairs, 1)}
            if repeated_pairs := [pair for pair, count in Counter(pairs).items() if count > 1]:
                ticker, name = repeated_pairs[0]
                raise LayoutError(f" has several columns of '{ticker}' named '{name}': keep only one.")
            blocks = {
                ticker: {name: places[key] for name, at in columns.items() if (key := (ticker, names[at])) in places}
                for ticker in filter(None, self.tickers)
            }
        else:
            codes, symbols = self._symbols()
            kept &= np.asarray(symbols != "")[codes]
            # Ignore duplicate rows.
            again = "symbol" not in used.roles and timestamps["timestamp"][kept & ~self.cells.duplicated()].duplicated()
            if np.mean(again) > _REPEATED:
                raise LayoutError(
                    " has several rows of most dates, and no column of symbols: name it in market.columns.symbol."
                )
        parts, lost = [], np.zeros(len(kept), dtype=np.bool_)
        for number, block in enumerate(blocks.values()):
            numbers = {name: self._numbers(place, name in (*BAR, "adjusted_close")) for name, place in block.items()}
            _require_bars(numbers)
            part = timestamps.assign(code=number if codes is None else codes, **numbers)
            parts.append(part if kept.all() else part[kept])
            lost |= ~kept.to_numpy() & ~np.isnan(numbers["close"])
        if lost.sum() > max(_FEW_LOST, _MOST_LOST * len(lost)):
            raise LayoutError(f" has {lost.sum():,} rows with prices but no date or symbol: write both into each row.")
        counts, alike = Counter(map(clean_text, names)), Counter(map(heading_key, names))
        if repeated := [name for place in (*used.roles.values(), *own) if counts[name := clean_text(names[place])] > 1]:
            raise LayoutError(f" has several columns named '{repeated[0]}': keep only one.")
        for role, name in ((role, names[place]) for role, place in used.roles.items()):
            if alike[heading_key(name)] > 1 and heading_key(name) and not getattr(self.market.columns, role):
                raise LayoutError(f" has several columns like '{name}': name one in market.columns.{role}.")
        times = len(blocks) if self.tickers else 1
        return FileRows(
            name=self.file.path.name,
            layout="long" if "close" in columns else "wide",
            symbols=tuple(blocks) if codes is None else tuple(map(str, symbols)),
            rows=pd.concat(parts or [timestamps.assign(code=0)[:0]], ignore_index=True),
            read=len(self.cells) * times,
            undated=int((~kept).sum()) * times,
            ignored=(*(names[place] for place in used.others if place not in own), *unused),
            vendor=formats.YFINANCE if self.tickers else used.vendor,
        )

    def _add_partition(self, key: str, value: str) -> bool:
        """Add a partition as a column if its key is a heading of symbols or dates; return whether it is a column."""
        aliases = next((ALIASES[role] for role in ("symbol", "date") if heading_key(key) in ALIASES[role]), ())
        if aliases and not self.tickers and not any(heading_key(name) in aliases for name in self.names):
            self.cells[len(self.names)] = "" if value == _NO_PARTITION else unquote(value)
            self.names = (*self.names, key)
        return key in self.names

    def _symbols(self) -> "tuple[NDArray[np.intp], pd.Index[str]]":
        """Return the sorted symbols, and the position of each row's symbol among them; empty for a row without one."""
        if "symbol" in self.used.roles:
            codes, texts = formats.distinct_texts(self.cells[self.used.roles["symbol"]])
            places, symbols = pd.factorize(texts.map(clean_text), sort=True)
            return places[codes], symbols
        symbol, vendor = self.file.symbol, self.used.vendor
        if vendor is not None and vendor.symbol is not None and not self.market.symbol_from:
            symbol = vendor.symbol_in(self.file.stem) or symbol
        if not symbol:
            raise LayoutError(
                " has no column of symbols, and its name may be more than a symbol: name the column in "
                "market.columns.symbol, or the part of the name in market.symbol_from, as {symbol}-1d-{part}.csv."
            )
        return np.zeros(len(self.cells), dtype=np.intp), pd.Index([clean_text(symbol)])

    def _timestamps(self) -> pd.DataFrame:
        place, vendor = self.used.roles["date"], self.used.vendor
        patterns = (self.market.date_format,) if self.market.date_format else vendor.date_formats if vendor else ()
        parsed = formats.parse_dates(self.cells[place], patterns)
        if not (valid := parsed.pop("valid")).all():
            advice = "correct" if self.market.date_format else "name the format of the dates in"
            known = " or ".join(patterns) or "2024-12-31"
            raise self._cell_error(place, ~valid, f"no date as {known}: {advice} market.date_format.")
        if "time" in self.used.roles:
            written, times = parsed["timestamp"], self.used.roles["time"]
            seconds = np.where(written.isna(), 0.0, formats.parse_times_of_day(self.cells[times]))
            if np.isnan(seconds).any():
                raise self._cell_error(times, np.isnan(seconds), "no time of day: write 16:00:00.")
            days = written.dt.normalize()
            parsed["timestamp"] = days + seconds.astype(np.int64).astype("timedelta64[s]")
            if (written.notna() & (written != days) & (written != parsed["timestamp"])).any():
                raise LayoutError(
                    f" has times of day in two columns, '{self.names[place]}' and '{self.names[times]}', and they "
                    "differ: keep only one."
                )
        return parsed

    def _numbers(self, place: int, of_prices: bool) -> NDArray[np.float64]:
        """Return a column's numbers; `LayoutError` if a cell is none, or if it groups digits in a column `of_prices`
        and neither another number of the column nor `market.decimal` shows the decimal mark."""
        column = self.cells[place]
        if pd.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "b":
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        texts = formats.to_text(column)
        numbers, wanted = pd.to_numeric(texts, errors="coerce"), "write it as 1234.5"
        if self.used.vendor is not None and self.used.vendor.has_units:
            # Numbers as $1,234.50, 1.00M and 0.5%.
            parts = texts.str.replace(",", "").str.extract(r"^([-+]?)\$?([-+]?[0-9]*\.?[0-9]+)\s*([KMBT]?)%?$")
            numbers = pd.to_numeric(parts[1], errors="coerce") * parts[2].fillna("").map(_UNITS)
            numbers = numbers.where(parts[0] != "-", -numbers)
        elif self.decimal is not None:
            mark, other = re.escape(self.decimal), re.escape(_OTHER_MARK[self.decimal])
            grouped = texts.str.fullmatch(rf"[-+]?[1-9]\d{{0,2}}({other}\d{{3}})+({mark}\d*)?")
            plain = texts.str.fullmatch(rf"[-+]?\d*({mark}\d*)?([eE][-+]?\d+)?")
            shown = texts.str.contains(mark) | (texts.str.count(other) > 1)
            if of_prices and self.market.decimal is None and grouped.any() and not shown.any():
                example = f"numbers like {texts[grouped].iloc[0]} in column '{self.names[place]}'"
                raise LayoutError(f" has {example}, and no other number of the column {_TWO_MARKS}")
            written = texts.str.translate({ord(_OTHER_MARK[self.decimal]): None, ord(self.decimal): "."})
            numbers = pd.to_numeric(written.where(grouped | plain), errors="coerce")
            wanted = f"write all numbers with the decimal mark '{self.decimal}', or set market.decimal"
        wrong = numbers.isna() & ~texts.str.lower().isin(_MARKERS)
        if wrong.any():
            raise self._cell_error(place, wrong, f"no number: {wanted}.")
        return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))

    def _is_own(self, place: int) -> bool:
        """Return whether a column without a role is a feature: most cells are numbers, but not row numbers."""
        if not self.market.uses_columns:
            return False
        column = self.cells[place].dropna().head(_CELLS_TO_JUDGE_BY)
        if heading_key(self.names[place]) in _ROW_NUMBERS or column.dtype.kind in "bM":
            return False
        return bool(pd.to_numeric(column, errors="coerce").notna().mean() > 0.5)

    def _cell_error(self, place: int, wrong: ArrayLike, kind: str) -> LayoutError:
        row = int(np.argmax(wrong))
        text = str(self.cells[place].iloc[row]).strip()
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        where = f", {self.row_word} {self.first_row + row:,}, column '{self.names[place]}'"
        return LayoutError(f"{where}: '{shown}' is {kind}")


def _require_bars(prices: Mapping[str, NDArray[np.float64]]) -> None:
    if not prices.keys() >= set(BAR):
        return
    opened, high, low, close = (prices[role] for role in BAR)
    wrong = (high < np.maximum(opened, close)) | (low > np.minimum(opened, close))
    if wrong.sum() > max(_FEW_WRONG, (~np.isnan(high + low + opened + close)).sum() // 2):
        raise LayoutError(
            " has highs below opens or closes, or lows above them, in most rows: name the columns by what they contain."
        )


def _lines_of_json(content: bytes) -> bytes:
    """Return a JSON list of rows, lists of numbers as exchanges give and freqtrade stores them, as lines of CSV."""
    text = b"".join(content.split())
    lines = text[2:-2].replace(b"],[", b"\n")
    if text[:2] + text[-2:] != b"[[]]" or re.search(rb"[^-+.,\w\n]", lines):
        raise OSError("no list of rows")
    return lines + b"\n"


def _csv_table(content: bytes, file: SourceFile, market: MarketConfig) -> _Table:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = content.decode("utf-16").encode()
    content = content.removeprefix(b"\xef\xbb\xbf")
    if not re.fullmatch(rb"\S\n", content[-2:]):
        content = content.rstrip() + b"\n"
    if content == b"\n":
        raise LayoutError(" is empty: give a file with dates and prices.")
    if b"\0" in content:
        raise OSError("text holds no NUL")
    ending = re.search(rb"\r\n|\r|\n", content)
    if ending is not None and ending.group() == b"\r":
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    stream = io.BytesIO(content)
    above = content[:4].lower() == b"sep="
    separator = stream.readline()[4:].decode().strip("\r\n")[:1] if above else ""
    begin = stream.tell()
    lines = [stream.readline() for _ in range(3)]
    texts = [line.decode().rstrip("\r\n") for line in lines]
    separator = separator or max(_SEPARATORS, key=texts[0].count)
    names, tickers, skipped = formats.parse_headings(
        [tuple(map(clean_text, next(csv.reader([text], delimiter=separator), []))) for text in texts]
    )
    as_text = _text_columns(names, market, file.stem)
    start = begin + sum(map(len, lines[:skipped]))
    decimal = "." if len(as_text) == len(names) else _decimal_mark(content, start, separator, market)
    stream.seek(0)
    # Lines may end with a separator.
    width = len(names) + 1
    missing: Any = {place: _MISSING for place in range(width) if place not in as_text}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        cells = pd.read_csv(
            stream,
            sep=separator,
            header=None,
            skiprows=above + skipped,
            names=list(range(width)),
            index_col=False,
            dtype=dict.fromkeys(as_text, "str"),
            keep_default_na=False,
            na_values=missing,
            skipinitialspace=True,
            skip_blank_lines=False,
            low_memory=False,
            encoding="utf-8",
            decimal=decimal,
        )
    if cells[width - 1].notna().any():
        raise LayoutError(_MORE_CELLS)
    del cells[width - 1]
    if lost := content.count(b"\n", start) - len(cells):
        raise LayoutError(f" has a quotation mark that is not closed, which hides {lost:,} lines: remove it.")
    return _Table(file, market, names, tickers, cells, "line", above + skipped + 1, decimal)


def _text_columns(names: Sequence[str], market: MarketConfig, stem: str) -> set[int]:
    used = formats.columns_of(names, market, stem)
    if used is None:
        aliases = {alias for role in _TEXT_ROLES for alias in ALIASES[role]}
        return {0} | {place for place, name in enumerate(names) if heading_key(name) in aliases}
    if used.vendor is not None and used.vendor.has_units:
        return set(range(len(names)))
    return {place for role, place in used.roles.items() if role in _TEXT_ROLES}


def _decimal_mark(content: bytes, start: int, separator: str, market: MarketConfig) -> str:
    """Return the decimal mark of a file's numbers; `LayoutError` if none shows it, and some may group digits."""
    if market.decimal is not None:
        return market.decimal
    commas = content.find(b'"' if separator == "," else b",", start) >= 0
    if separator == "," and not commas:
        return "."

    def is_written(mark: str, other: str, sure: bool) -> bool:
        # Cells that contain a comma are quoted.
        quoted = separator == "," == mark
        before = '(?<=")' if quoted else f'(?<![^{re.escape(separator)}"\\n])'
        after = '(?=")' if quoted else f'(?=[{re.escape(separator)}"\\r\\n])'
        one, two = re.escape(mark), re.escape(other)
        grouped = rf"[1-9]\d{{0,2}}(?:{one}\d{{3}})+{after}"
        decimals = rf"(?!{grouped})(?:\d{{1,3}}(?:{two}\d{{3}})+|\d*){one}\d+{after}"
        pattern = re.compile(f"{before}[-+]?{decimals if sure else grouped}".encode())
        return pattern.search(content, start) is not None

    if commas and is_written(",", ".", sure=True):
        return ","
    if not is_written(".", ",", sure=True) and (
        is_written(",", ".", sure=False) or (separator != "," and is_written(".", ",", sure=False))
    ):
        raise LayoutError(f" has numbers like 1.234 or 1,234, and no other number {_TWO_MARKS}")
    return "."


def _arrow_table(stored: pa.Table, file: SourceFile, market: MarketConfig) -> _Table:
    schema = stored.schema
    try:
        # Metadata of the data frame that pandas wrote.
        notes = dict(schema.pandas_metadata or {})
    except (ValueError, TypeError, RecursionError):
        notes = {}
    index, levels_noted = (each if isinstance(each := notes.get(key), list) else [] for key in _PANDAS_NOTES)
    order = sorted(range(len(schema)), key=lambda place: schema.names[place] not in index)
    stored = stored.select(order).replace_schema_metadata()
    try:
        cells = stored.to_pandas(date_as_object=False)
    except KeyError as error:
        raise LayoutError(f" has an unknown time zone ({error}): write dates as YYYY-MM-DD.") from error
    names, tickers, _ = formats.parse_headings([tuple(map(str, cells.columns)), (), ()])
    cells.columns = pd.RangeIndex(len(names))
    # Two levels of headings become names like ('Close', 'AAPL').
    pairs = [pair for name in names[1:] if (pair := _TWO_HEADINGS.fullmatch(name))]
    if len(pairs) == len(names) - 1:
        titles = [str(each.get("name") or "") for each in levels_noted if isinstance(each, dict)]
        first, second = titles if len(titles) == 2 else ("", "")
        levels = [(first, *(pair[1][1:-1] for pair in pairs)), (second, *(pair[2][1:-1] for pair in pairs)), ()]
        if (found := formats.parse_headings(levels))[1]:
            names, tickers, _ = found
    return _Table(file, market, names, tickers, cells)
