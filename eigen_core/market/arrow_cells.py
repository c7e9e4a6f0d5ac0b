"""The cells of Arrow tables: Parquet files, Feather files and other files of Arrow's own format."""

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eigen_core.errors import InputError
from eigen_core.market.cells import Cells
from eigen_core.market.headings import check_names

_KINDS = {"parquet": "Parquet", "arrow": "Arrow or Feather"}
# How pandas names a column of two headings.
_TWO_HEADINGS = re.compile(r"""\((?P<upper>'[^'\\]*'|"[^"\\]*"), (?P<lower>'[^'\\]*'|"[^"\\]*")\)""")


def read_arrow(content: bytes, form: str, where: str) -> Cells:
    """Return the cells of a Parquet file, or of a file in Arrow's format for files or streams.

    Args:
        content: its bytes.
        form: `parquet` or `arrow`.
        where: the file, for messages.

    Raises:
        InputError: it is not of that form, or its headings are none.
    """
    try:
        stored = _stored(content, form)
        notes = _notes_of_pandas(stored.schema)
        index = _index_columns(stored.schema, notes)
        stored = stored.select([*index, *(position for position in range(stored.num_columns) if position not in index)])
        stored = stored.cast(pa.schema([_as_text(field) for field in stored.schema]))
        stored.validate(full=True)
        frame = stored.to_pandas(date_as_object=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} is no {_KINDS[form]} file, or a damaged one: write it again, or give a CSV file."
        ) from error
    except KeyError as error:
        raise InputError(f"{where} has a time zone that is not known ({error}): write dates as YYYY-MM-DD.") from error
    names = tuple(str(name) for name in frame.columns)
    check_names(names, where)
    columns = tuple(frame.iloc[:, position] for position in range(len(names)))
    return _with_two_headings(Cells(names, columns, len(frame), len(frame), 1, "row"), notes)


def _stored(content: bytes, form: str) -> pa.Table:
    source = pa.BufferReader(content)
    if form == "parquet":
        return pq.read_table(source)
    return (pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream)(source).read_all()


def _notes_of_pandas(schema: pa.Schema) -> dict[str, Any]:
    """Return what pandas has noted on the data frame that was written, nothing where it cannot be read."""
    try:
        notes = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _index_columns(schema: pa.Schema, notes: dict[str, Any]) -> list[int]:
    """Return the positions of the columns that were the index of a data frame, as far as pandas' notes say so."""
    names = notes.get("index_columns")
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [position for position, name in enumerate(schema.names) if name in known]


def _as_text(field: pa.Field) -> pa.Field:
    """Return a text field for a field of bytes: some programs write text as bytes."""
    of_bytes = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
    return pa.field(field.name, pa.string() if of_bytes else field.type)


def _with_two_headings(cells: Cells, notes: dict[str, Any]) -> Cells:
    """Return the cells with the headings of a data frame that had two of each column apart."""
    pairs = [_TWO_HEADINGS.fullmatch(name) for name in cells.names]
    if not all(pairs[1:]):
        return cells
    upper, lower = (
        tuple(name if pair is None else pair[level][1:-1] for name, pair in zip(cells.names, pairs, strict=True))
        for level in ("upper", "lower")
    )
    described = notes.get("column_indexes")
    given = [level.get("name") for level in described if isinstance(level, dict)] if isinstance(described, list) else []
    first, second = (str(name or "") for name in (given if len(given) == 2 else ("", "")))
    return Cells(
        names=upper,
        columns=cells.columns,
        rows=cells.rows,
        file_rows=cells.rows,
        first_row=cells.first_row,
        row_word=cells.row_word,
        lower=lower,
        level_names=(first, second),
    )
