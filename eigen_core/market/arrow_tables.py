"""Parquet and Arrow files: their size in memory, by what they say before they are read, and their tables."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eigen_core.market.formats import LayoutError

_CELL_BYTES = 8
_MAGIC = b"ARROW1\0\0"


def table_bytes(content: bytes, form: str) -> int:
    """Return the bytes that a table takes, without its repeated texts, at least 8 per cell; `pa.ArrowException` if
    `content` is not of the `form` (`parquet` or `arrow`)."""
    return _parquet_bytes(content) if form == "parquet" else _arrow_bytes(content)


def read_table(content: bytes, form: str, most_text: int) -> pa.Table:
    """Return the table of a file; `LayoutError` if the texts of a column take more than `most_text` bytes, and
    `pa.ArrowException` if the file is damaged."""
    buffer = pa.py_buffer(content)
    if form == "arrow":
        # A file is a stream after its magic number. Its footer could name a part of it several times.
        stored = pa.ipc.open_stream(buffer[len(_MAGIC) :] if content.startswith(_MAGIC) else buffer).read_all()
    else:
        columns = pq.read_metadata(pa.BufferReader(buffer)).schema
        texts = [each.path for each in map(columns.column, range(len(columns))) if _is_text(each)]
        stored = pq.read_table(pa.BufferReader(buffer), read_dictionary=texts)
    stored.validate(full=True)
    for name, column in zip(stored.column_names, stored.columns, strict=True):
        if sum(map(_text_bytes, column.chunks)) > most_text:
            raise LayoutError(f" has texts in column '{name:.40}' that take more than 40 times its size: shorten them.")
    fields = [pa.field(each.name, _plain(each.type, form)) for each in stored.schema]
    return stored.cast(pa.schema(fields, stored.schema.metadata))


def _plain(kind: pa.DataType, form: str) -> pa.DataType:
    if form == "parquet" and pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if kind in (pa.binary(), pa.large_binary()) else kind


def _is_text(column: Any) -> bool:  # noqa: ANN401 - pyarrow's class is private
    return (column.physical_type, column.logical_type.type == "DECIMAL") == ("BYTE_ARRAY", False)


def _text_bytes(chunk: pa.Array) -> int:
    values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        views = np.frombuffer(values.buffers()[1] or b"", dtype=np.int32).reshape(-1, 4)
        lengths = pa.array(views[values.offset : values.offset + len(values), 0])
    elif any(kind(values.type) for kind in (pa.types.is_string, pa.types.is_binary, _is_large)):
        lengths = pc.binary_length(values)
    else:
        return 0
    lengths = lengths.cast(pa.int64())
    return int(pc.sum(lengths.take(chunk.indices) if values is not chunk else lengths).as_py() or 0)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _parquet_bytes(content: bytes) -> int:
    footer = pq.read_metadata(pa.BufferReader(content))
    widths = [max(footer.schema.column(place).length, _CELL_BYTES) for place in range(footer.num_columns)]
    total = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        cells = sum(group.column(place).num_values * width for place, width in enumerate(widths))
        total += max(cells, group.num_rows * footer.num_columns * _CELL_BYTES, group.total_byte_size)
    return total


def _arrow_bytes(content: bytes) -> int:
    """Add up the buffers of all messages, after decompression, and the lengths of their columns.

    Arrow specification, "Serialization and Interprocess Communication": a compressed buffer begins with its length.
    """
    total = 0
    for message in pa.ipc.MessageReader.open_stream(content.removeprefix(_MAGIC)):
        if message.type == "schema":
            continue
        data, body = message.metadata.to_pybytes(), message.body
        batch = _table(data, _field(data, _table(data, 0), 2))
        if message.type != "record batch":
            # A dictionary.
            batch = _table(data, _field(data, batch, 1))
        nodes, buffers = (_structs(data, _field(data, batch, number)) for number in (1, 2))
        is_compressed = _field(data, batch, 3) > 0
        stored = 0
        for begin, length in buffers:
            known = int.from_bytes(body[begin : begin + 8], "little", signed=True) if is_compressed and length else -1
            stored += max(known, length)
        total += max(stored, _CELL_BYTES * sum(length for length, _ in nodes))
    return total


# FlatBuffers: a table begins with the distance to the positions of its fields.
def _number(data: bytes, place: int, size: int, signed: bool = False) -> int:
    return int.from_bytes(data[place : place + size], "little", signed=signed)


def _table(data: bytes, place: int) -> int:
    return place + _number(data, place, 4)


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the table lacks it."""
    positions = table - _number(data, table, 4, signed=True)
    place = 4 + 2 * number
    distance = _number(data, positions + place, 2) if place < _number(data, positions, 2) else 0
    return table + distance if distance else 0


def _structs(data: bytes, field: int) -> list[tuple[int, int]]:
    """Return the structs of a vector, which are two numbers of 8 bytes each."""
    if not field:
        return []
    begin = _table(data, field)
    pairs = np.frombuffer(data, dtype="<i8", offset=begin + 4, count=2 * _number(data, begin, 4))
    return [(int(first), int(second)) for first, second in pairs.reshape(-1, 2)]
