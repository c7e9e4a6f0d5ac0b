"""Which files prices are read from: one file, a folder of them, or a folder of partitions."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from eigen_core.bundled import path_of_data
from eigen_core.errors import InputError

_FORMS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "arrow",
    ".arrow": "arrow",
    ".ipc": "arrow",
}
# In a folder other text lies beside prices; Stooq's begins so.
_TEXT_OF_PRICES = b"<TICKER>"
_ARCHIVE = "is an archive: unpack it and give the file or folder."
_OTHER = "is no file of prices that can be read: export its prices as CSV or Parquet, and give that."
_ADVICE = {
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), _ARCHIVE),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), _OTHER),
    **dict.fromkeys((".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3", ".pkl", ".pickle"), _OTHER),
}
# freqtrade's files are named like BTC_USDT-1d.feather.
_LENGTH_OF_BARS = re.compile(r"-\d+[smhdwM](-futures|-spot)?$")
# Names that are symbols and nothing else: AAPL, BRK-B, 0700.HK, ^GSPC, BTC-USD, aapl.us. What may be a part of a
# symbol's history has a space, an underscore, a number after a hyphen, or a year at its end.
_SYMBOL = re.compile(
    r"(?!.*[-.]\d)(?!.*[^\W\d](19|20)\d{2})(?!(part|data|chunk)\W?\d)\^?[^\W_]+([-.^=&!$+][^\W_]*)*", re.IGNORECASE
)

Partition = tuple[tuple[str, str], ...]
"""Key and value of each folder `key=value` that a file lies in, as they are written."""


@dataclass(frozen=True)
class SourceFile:
    """A price file.

    Attributes:
        path: where it lies.
        form: `csv`, `parquet` or `arrow`.
        symbol: whose prices it holds if it has no column of symbols; empty: its name does not say it.
        sha256: of its bytes, in hexadecimal.
        partition: of the folders that it lies in; empty: it is no part of a larger table.
    """

    path: Path
    form: str
    symbol: str
    sha256: str
    partition: Partition = ()

    @property
    def name(self) -> str:
        """Its name, with the folders of its partition."""
        return "/".join([*(f"{key}={value}" for key, value in self.partition), self.path.name])


@dataclass(frozen=True)
class Source:
    """Everything that prices are read from.

    Attributes:
        path: the file or folder.
        files: the price files, ordered by name.
        ignored: names of what else the folder holds.
    """

    path: Path
    files: tuple[SourceFile, ...]
    ignored: tuple[str, ...] = ()


def find_source(data: str | None, symbol_from: str | None = None) -> Source:
    """Find and hash the price files of `config.market.data`.

    Args:
        data: path, name of bundled prices, or None for the default ones.
        symbol_from: where the symbol is in a file's name; see `MarketConfig.symbol_from`.

    Raises:
        InputError: there is no such file or folder, it holds no price file, or one cannot be read; or `data` can be
            read in two ways.
    """
    path = path_of_data(data)
    try:
        return _source_at(path, symbol_from)
    except OSError as error:
        raise InputError(unreadable(path, error)) from error


def unreadable(path: Path, error: OSError) -> str:
    """Return the sentence about a file that cannot be opened."""
    return f"{error.filename or path} cannot be read ({error.strerror}): check the name and the permissions."


def symbol_in(name: str, symbol_from: str) -> str:
    """Return the symbol that a file's name has by a pattern as `{symbol}-1d-{part}.csv`; empty: it is not so named."""
    pattern = re.escape(symbol_from).replace(r"\{symbol\}", "(?P<symbol>.+?)").replace(r"\{part\}", r"\d.*?")
    found = re.fullmatch(pattern, name, re.IGNORECASE)
    return found["symbol"] if found else ""


def _source_at(path: Path, symbol_from: str | None) -> Source:
    if path.is_dir():
        return _folder_at(path, symbol_from)
    if not path.exists():
        raise InputError(f"There is no file or folder {path}: give a CSV or Parquet file or a folder of them.")
    if _form_of(path) is None:
        advice = _ADVICE.get(path.suffix.lower(), "is of no known kind: give a file named .csv, .csv.gz or .parquet.")
        raise InputError(f"{path} {advice}")
    if not path.is_file():
        raise InputError(f"{path} is a pipe or a device, which cannot be read twice: give a file or a folder of files.")
    symbol = _stem(path) if symbol_from is None else _named_symbol(path, symbol_from)
    return Source(path, (_source_file(path, symbol, ()),))


def _folder_at(path: Path, symbol_from: str | None) -> Source:
    found, ignored = _entries(path)
    if not found:
        raise InputError(_without_prices(path))
    files = []
    for file, partition in found:
        if symbol_from is not None:
            symbol = _named_symbol(file, symbol_from)
        else:
            stem = _stem(file)
            of_freqtrade = _form_of(file) == "arrow" and stem != file.stem
            symbol = stem if not partition and (of_freqtrade or _SYMBOL.fullmatch(stem)) else ""
        files.append(_source_file(file, symbol, partition))
    return Source(path, tuple(files), ignored)


def _named_symbol(path: Path, symbol_from: str) -> str:
    symbol = symbol_in(path.name, symbol_from)
    if not symbol:
        raise InputError(f"{path} is not named as market.symbol_from={symbol_from} says: rename it or change that.")
    return symbol


def _without_prices(folder: Path) -> str:
    entries = sorted(folder.iterdir())
    for entry in entries:
        if entry.is_dir() and any(_is_price_file(file) for file in entry.iterdir()):
            return (
                f"{folder} holds price files in folders like {entry.name} only: name such a folder like "
                f"symbol={entry.name} if that is the symbol, or give it alone."
            )
    for entry in entries:
        if entry.suffix.lower() in _ADVICE:
            return f"The folder {folder} holds no price file: {entry.name} {_ADVICE[entry.suffix.lower()]}"
    return f"The folder {folder} holds no price file: put one CSV or Parquet file a symbol into it."


def _entries(folder: Path, partition: Partition = ()) -> tuple[list[tuple[Path, Partition]], tuple[str, ...]]:
    """Return the price files of a folder and of its partitions, and the names of what is none."""
    found: list[tuple[Path, Partition]] = []
    ignored: list[str] = []
    for entry in sorted(folder.iterdir()):
        key, divided, value = entry.name.partition("=")
        if _is_price_file(entry):
            found.append((entry, partition))
        elif key and divided and entry.is_dir():
            inner, others = _entries(entry, (*partition, (key, value)))
            found += inner
            ignored += [f"{entry.name}/{other}" for other in others]
        else:
            ignored.append(entry.name)
    return found, tuple(ignored)


def _is_price_file(path: Path) -> bool:
    if path.name.startswith(".") or _form_of(path) is None or not path.is_file():
        return False
    if path.suffix.lower() != ".txt":
        return True
    with path.open("rb") as file:
        return file.read(len(_TEXT_OF_PRICES)) == _TEXT_OF_PRICES


def _form_of(path: Path) -> str | None:
    return _FORMS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _stem(path: Path) -> str:
    stem = Path(path.name[:-3] if path.name.lower().endswith(".gz") else path.name).stem
    return _LENGTH_OF_BARS.sub("", stem) if _form_of(path) == "arrow" else stem


def _source_file(path: Path, symbol: str, partition: Partition) -> SourceFile:
    form = _form_of(path)
    if form is None:
        raise ValueError(f"{path} is no price file")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return SourceFile(path, form, symbol, digest.hexdigest(), partition)
