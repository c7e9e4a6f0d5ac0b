"""Tables of Parquet and Arrow files. They are read in parts, and their size in memory is checked before each part."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_CELL_BYTES, _BATCH_ROWS = 8, 16_384
_BINARY = (pa.binary(), pa.large_binary())
_VIEWS = (pa.string_view(), pa.binary_view())
_TEXTS = (pa.string(), pa.large_string(), *_BINARY, *_VIEWS)
_MAGIC = b"ARROW1\0\0"


def read_table(content: bytes, form: str, require: Callable[[int], None]) -> pa.Table:
    """Return the table of a file of the `form` (`parquet` or `arrow`); `pa.ArrowException` if it is damaged.

    `require` is called with the bytes that the table takes so far, at least 8 per cell and all repeated texts, before
    more is read. What Parquet says about its size is checked first, but not believed.
    """
    parts = (_parquet_parts if form == "parquet" else _arrow_parts)(pa.BufferReader(content), require)
    batches, taken = [], 0
    for batch in parts:
        batch.validate(full=True)
        taken += sum(max(_CELL_BYTES * len(column), _text_bytes(column)) for column in batch.columns)
        require(taken)
        batches.append(batch)
    stored = pa.Table.from_batches(batches, batches[0].schema if batches else pa.schema([]))
    binary = {
        place: pa.string()
        for place, kind in enumerate(stored.schema.types)
        if getattr(kind, "value_type", kind) in _BINARY
    }
    fields = [pa.field(each.name, binary.get(place, each.type)) for place, each in enumerate(stored.schema)]
    return stored.cast(pa.schema(fields, stored.schema.metadata))


def _parquet_parts(file: pa.BufferReader, require: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    footer = pq.read_metadata(file)
    columns = [footer.schema.column(place) for place in range(footer.num_columns)]
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    require(max(footer.num_rows * len(columns) * _CELL_BYTES, sum(group.total_byte_size for group in groups)))
    # Texts that repeat stay one text.
    of_bytes = [each for each in columns if each.physical_type == "BYTE_ARRAY"]
    texts = [each.path for each in of_bytes if each.logical_type.type != "DECIMAL"]
    opened = pq.ParquetFile(file, metadata=footer, read_dictionary=texts)
    # One group after another: of several, Arrow decodes all at once.
    for group in range(len(groups)):
        yield from opened.iter_batches(_BATCH_ROWS, row_groups=[group])


def _arrow_parts(file: pa.BufferReader, require: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    # A file is a stream after its magic number. Its footer could name a part of it several times.
    begin = len(_MAGIC) if file.read(len(_MAGIC)) == _MAGIC else 0
    file.seek(begin)
    require(sum(_inflated_bytes(message) for message in pa.ipc.MessageReader.open_stream(file)))
    file.seek(begin)
    yield from pa.ipc.open_stream(file)


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes of all texts of a column, each as often as it occurs; 0 if it contains none."""
    is_coded = pa.types.is_dictionary(column.type)
    values = column.dictionary if is_coded else column
    if values.type not in _TEXTS:
        return 0
    if values.type in _VIEWS:
        views = np.frombuffer(values.buffers()[1] or b"", dtype=np.int32).reshape(-1, 4)
        lengths = pa.array(views[values.offset : values.offset + len(values), 0], pa.int64())
    else:
        lengths = pc.binary_length(values).cast(pa.int64())
    return int(pc.sum(lengths.take(column.indices) if is_coded else lengths).as_py() or 0)


def _inflated_bytes(message: Any) -> int:  # noqa: ANN401 - pyarrow has no types
    """Return the bytes of a message's buffers after decompression; a compressed one begins with its length (Arrow
    specification, "Serialization and Interprocess Communication")."""
    if message.type == "schema":
        return 0
    data = message.metadata.to_pybytes()

    def number(place: int, kind: str = "<I") -> int:
        return int(struct.unpack_from(kind, data, place)[0])

    def field(table: int, index: int) -> int:
        # FlatBuffers: a table begins with the distance to the positions of its fields.
        positions, place = table - number(table, "<i"), 4 + 2 * index
        distance = number(positions + place, "<H") if place < number(positions, "<H") else 0
        return table + distance if distance else 0

    def at(place: int) -> int:
        return place + number(place)

    batch = at(field(at(0), 2))
    if message.type != "record batch":
        # A dictionary.
        batch = at(field(batch, 1))
    if not (buffers := field(batch, 2)):
        return 0
    begin = at(buffers)
    places = np.frombuffer(data, "<i8", 2 * number(begin), begin + 4).reshape(-1, 2)
    if not field(batch, 3):
        return int(places[:, 1].sum())
    starts = [message.body[first : first + 8] for first, length in places.tolist() if length]
    return sum(int.from_bytes(start, "little") for start in starts)
