"""Which files prices are read from: one file, a folder of them, or a folder of partitions."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from eigen_core.bundled import path_of_data
from eigen_core.errors import InputError

_COPY = re.compile(r" ?\(\d+\)$|[ _-]+copy( ?\(?\d+\)?)?$|^copy (\(\d+\) )?of ", re.IGNORECASE)
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
_SHEETS = "is a spreadsheet: save the sheet of prices as CSV in UTF-8, and give that."
_DATABASE = "is a database, which may hold many tables: export the one of prices"
_ARCHIVE = "is an archive: unpack it and give the file or folder."
_PICKLE = "could run code when it is opened: save the prices as Parquet, and give that."
_ADVICE = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), _SHEETS),
    **dict.fromkeys((".duckdb", ".ddb"), f"{_DATABASE}, with `COPY prices TO 'prices.parquet'`, and give that."),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), f"{_DATABASE} to CSV or Parquet, and give that."),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), _ARCHIVE),
    **dict.fromkeys((".pkl", ".pickle"), _PICKLE),
}
# pyarrow, DuckDB, Spark and Dask name the files of one table so.
_PART = re.compile(r"(part|data|chunk)[-_.]\d.*|[0-9a-f]{32}-\d+|[0-9a-f-]{36}(-\d+)?", re.IGNORECASE)
# freqtrade's files are named like BTC_USDT-1d.feather.
_LENGTH_OF_BARS = re.compile(r"-\d+[smhdwM](-futures|-spot)?$")

Partition = tuple[tuple[str, str], ...]
"""Key and value of each folder `key=value` that a file lies in, as they are written."""


@dataclass(frozen=True)
class SourceFile:
    """A price file.

    Attributes:
        path: where it lies.
        form: `csv`, `parquet` or `arrow`.
        symbol: whose prices it holds if it has no column of symbols: its name without the suffix; empty: it is a part
            of a table, whose name says nothing.
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


def find_source(data: str | None) -> Source:
    """Find and hash the price files of `config.market.data`.

    Raises:
        InputError: there is no such file or folder, it holds no price file, or one cannot be read; or `data` can be
            read in two ways.
    """
    path = path_of_data(data)
    try:
        return _source_at(path)
    except OSError as error:
        raise InputError(unreadable(path, error)) from error


def unreadable(path: Path, error: OSError) -> str:
    """Return the sentence about a file that cannot be opened."""
    return f"{error.filename or path} cannot be read ({error.strerror}): check the name and the permissions."


def _source_at(path: Path) -> Source:
    if path.is_dir():
        return _folder_at(path)
    if not path.exists():
        raise InputError(f"There is no file or folder {path}: give a CSV or Parquet file or a folder of them.")
    if _form_of(path) is None:
        advice = _ADVICE.get(path.suffix.lower(), "is of no known kind: give a file named .csv, .csv.gz or .parquet.")
        raise InputError(f"{path} {advice}")
    if not path.is_file():
        raise InputError(f"{path} is a pipe or a device, which cannot be read twice: give a file or a folder of files.")
    return Source(path, (_source_file(path, _symbol_of(path), ()),))


def _folder_at(path: Path) -> Source:
    found, ignored = _entries(path)
    if not found:
        raise InputError(_without_prices(path))
    symbols = ["" if partition or _PART.fullmatch(_symbol_of(file)) else _symbol_of(file) for file, partition in found]
    files = tuple(
        _source_file(file, symbol, partition) for (file, partition), symbol in zip(found, symbols, strict=True)
    )
    for file in files:
        first = _COPY.sub("", file.symbol)
        if first != file.symbol:
            raise InputError(
                f"{file.path} is named like a second download or a copy of {first}: keep one of them and remove the "
                "other, or name it by its symbol."
            )
    return Source(path, files, ignored)


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


def _symbol_of(path: Path) -> str:
    stem = Path(path.name[:-3] if path.name.lower().endswith(".gz") else path.name).stem
    return _LENGTH_OF_BARS.sub("", stem) if _form_of(path) == "arrow" else stem


def _source_file(path: Path, symbol: str, partition: Partition) -> SourceFile:
    form = _form_of(path)
    if form is None:
        raise ValueError(f"{path} is no price file")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return SourceFile(path, form, symbol, digest.hexdigest(), partition)
