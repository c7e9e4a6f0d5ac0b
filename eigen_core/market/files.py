"""Find price files (a file, a folder or partitions), and check that there is enough memory to read them."""

import gzip
import hashlib
import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from eigen_core.common.errors import InputError
from eigen_core.common.text import size
from eigen_core.config import Config, MarketConfig
from eigen_core.config.market import path_of_data
from eigen_core.machine import headroom_bytes

BYTES_PER_BYTE = 9
"""Peak of the resident memory per byte of text, until the panel is built. Measured: 6.3 to 8.7, in separate processes,
for files of 15 to 120 MB."""
WIDE_BYTES_PER_BYTE = 26
"""The same for the wide layout with 6 bytes per cell. Measured: 22.3 to 23.8 for files of 61 and 21 MB."""
# Smaller needs are not checked: torch alone takes more.
_LEAST_BYTES = 200_000_000
# Largest size after decompression; gzip shrinks prices to a quarter or a tenth.
_LARGEST_RATIO, _DECOMPRESSED_BYTES = 40, 1 << 26

_FORMS = {"csv": r"\.(csv|tsv|txt)", "parquet": r"\.(parquet|pq)", "arrow": r"\.(feather|arrow|ipc)"}
# A .txt file in a folder is a price file only if it begins like Stooq's.
_TEXT_OF_PRICES = b"<TICKER>"
_ADVICE = "give CSV or Parquet, which spreadsheets and databases export; name folders of parts like symbol=AAPL."
# freqtrade's files are named like BTC_USDT-1d.feather.
_LENGTH_OF_BARS = r"-\d+[smhdwM](-futures|-spot)?$"
# Symbols: AAPL, BRK-B, 0700.HK, ^GSPC, BTC-USD, aapl.us. A name with a space, an underscore, a number after a hyphen or
# a year before or after letters may be a part of a symbol's history.
_NO_PART = r"(?!.*([-.][^\W\d_]*\d|[^\W\d](19|20)\d\d))(?!(19|20)\d\d-?[^\W\d])(?!(part|data|chunk)\W?\d)"
_SYMBOL = _NO_PART + r"\^?[^\W_]+([-.^=&!$+][^\W_]*)*"

Partition = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SourceFile:
    """A price file.

    Attributes:
        form: `csv`, `parquet` or `arrow`.
        symbol: symbol in the file's name, used if the file has no symbol column; empty if unknown.
        partition: key and value of each parent folder `key=value`.
    """

    path: Path
    form: str
    symbol: str
    sha256: str
    partition: Partition = ()

    @property
    def name(self) -> str:
        return "/".join([*(f"{key}={value}" for key, value in self.partition), self.path.name])

    def read(self) -> bytes:
        """Return the decompressed content; raise InputError if the file is unreadable, changed or damaged."""
        try:
            content = self.path.read_bytes()
            if hashlib.sha256(content).hexdigest() != self.sha256:
                raise InputError(f"{self.path} changed while it was read: start again when it is complete.")
            if not content.startswith(b"\x1f\x8b"):
                return content
            most = _most_bytes(len(content))
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.path} is damaged: it cannot be decompressed ({error}).") from error
        except OSError as error:
            raise InputError(_unreadable(self.path, error)) from error
        if len(content) > most:
            raise InputError(f"{self.path} decompresses to more than {_LARGEST_RATIO} times its size: give prices.")
        return content


@dataclass(frozen=True)
class Source:
    """A file or folder of prices: its price files sorted by name, and the names of its other files."""

    path: Path
    files: tuple[SourceFile, ...]
    ignored: tuple[str, ...] = ()


def find_source(market: MarketConfig) -> Source:
    """Find and hash the price files of `market.data`."""
    path, symbol_from = path_of_data(market.data), market.symbol_from
    try:
        if path.is_dir():
            files, ignored = _files_in(path, (), symbol_from)
            if not files:
                raise InputError(f"The folder {path} holds no price file: {_ADVICE}")
            return Source(path, tuple(files), tuple(ignored))
        if not path.exists():
            raise InputError(f"There is no file or folder {path}: give a CSV or Parquet file or a folder of them.")
        if not _form_of(path):
            raise InputError(f"{path} is no price file: {_ADVICE}")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device: give a file or a folder of files.")
        return Source(path, (_source_file(path, (), symbol_from, alone=True),))
    except OSError as error:
        raise InputError(_unreadable(path, error)) from error


def symbol_in(name: str, symbol_from: str) -> str:
    """Return the symbol in a file's name by a pattern like `{symbol}-1d-{part}.csv`; empty if it does not match."""
    pattern = re.sub(r"^\\{part\\}", r"\\d[-_.\\d]*", re.escape(symbol_from)).replace(r"\{part\}", r"\d.*?")
    pattern = pattern.replace(r"\{symbol\}", "(?P<symbol>.+?)")
    found = re.fullmatch(pattern, name, re.IGNORECASE)
    return found["symbol"] if found else ""


def require_memory_to_read(source: Source, config: Config) -> None:
    """Raise `InputError` if, by the files' sizes, reading needs more memory than the guard's hard limit leaves."""
    text = 0
    for path in (file.path for file in source.files):
        text += (length := path.stat().st_size)
        if path.suffix == ".gz" and length > 4:
            with path.open("rb") as file:
                file.seek(-4, 2)
                # Uncompressed length modulo 4 GiB; it may be damaged.
                text += max(0, min(int.from_bytes(file.read(), "little"), _most_bytes(length)) - length)
    need = text * (WIDE_BYTES_PER_BYTE if config.market.layout == "wide" else BYTES_PER_BYTE)
    if need >= _LEAST_BYTES and need > (left := headroom_bytes(config.memory)):
        raise InputError(
            f"{source.path} holds {size(text)} of prices: reading them takes about {size(need)} of memory, but only "
            f"{size(left)} is available. Give fewer days or symbols, or more memory."
        )


def _most_bytes(compressed: int) -> int:
    return max(_DECOMPRESSED_BYTES, _LARGEST_RATIO * compressed)


def _unreadable(path: Path, error: OSError) -> str:
    return f"{error.filename or path} cannot be read ({error.strerror}): check the name and the permissions."


def _source_file(path: Path, partition: Partition, symbol_from: str | None, alone: bool = False) -> SourceFile:
    stem = Path(re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)).stem
    named = re.sub(_LENGTH_OF_BARS, "", stem) if _form_of(path) == "arrow" else stem
    is_symbol = alone or (not partition and (named != stem or re.fullmatch(_SYMBOL, stem, re.IGNORECASE)))
    symbol = named if is_symbol else ""
    if symbol_from is not None and not (symbol := symbol_in(path.name, symbol_from)):
        raise InputError(f"{path} does not match market.symbol_from={symbol_from}: rename it or change the setting.")
    with path.open("rb") as file:
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
            ignored.append(entry.name)
    return files, ignored


def _is_price_file(path: Path) -> bool:
    if path.name.startswith(".") or not _form_of(path) or not path.is_file():
        return False
    if path.suffix.lower() != ".txt":
        return True
    with path.open("rb") as file:
        return file.read(len(_TEXT_OF_PRICES)) == _TEXT_OF_PRICES


def _form_of(path: Path) -> str:
    forms = (form for form, ending in _FORMS.items() if re.fullmatch(rf".+{ending}(\.gz)?", path.name, re.IGNORECASE))
    return next(forms, "")
