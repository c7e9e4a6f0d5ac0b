"""TensorBoard: one event file for a run, to which each process of the run appends.

A generation is one record, so it is complete or missing. The file is a sequence of records: length (uint64), its
checksum (uint32), an event as a protocol buffer, its checksum; little-endian, the checksums masked CRC-32C
(tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
"""

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter, masked_crc32c

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.config import Config
from eigen_core.config.explain import flatten
from eigen_core.reporting.trackers import metrics_of, metrics_since

FILE_NAME = "events.out.tfevents.eigen"
CONFIGURATION = "configuration"
_VERSION = "brain.Event:2"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


class TensorBoardTracker:
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    memory_bytes: ClassVar[int] = 5_000_000

    def __init__(self, location: RunLocation, config: Config) -> None:
        run, given = location.name, config.reporting.tensorboard_folder
        folder = location.root / run / "tensorboard" if given is None else Path(os.path.expanduser(given)) / run
        self._path = folder / FILE_NAME
        # Four spaces begin a block of code in the Markdown that TensorBoard shows.
        settings = flatten(config.model_dump(mode="json"))
        self._configuration = "\n".join(f"    {key}: {value}" for key, value in settings.items()).encode()
        self._generation = 0
        self._size = -1

    def write(self, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> None:
        """Truncate generations that disagree with the history, then append the missing ones."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # In the first call, after a failure, or if the file was replaced.
            if file.tell() != self._size:
                self._generation = self._begin(file, history)
            for generation, metrics in metrics_since(self._generation, history, telemetry):
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
                _append(file, step=generation, summary=Summary(value=values))
            self._size = file.tell()
        self._generation = len(history)

    def _begin(self, file: BinaryIO, history: Sequence[GenerationRecord]) -> int:
        """Truncate the file where it disagrees with the history; return its last generation."""
        generation, end, configured = 0, 0, b""
        for ended, event in _events(self._path.read_bytes()):
            values = event.summary.value
            if [value.tag for value in values] == [CONFIGURATION]:
                configured = values[0].tensor.string_val[0]
            elif values:
                if event.step != generation + 1 or generation == len(history):
                    break
                if not _agree(event, metrics_of(history[generation])):
                    break
                generation += 1
            end = ended
        file.truncate(end)
        file.seek(end)
        if end == 0:
            _append(file, file_version=_VERSION)
        if configured != self._configuration:
            _append(file, step=generation, summary=Summary(value=[_as_text(self._configuration)]))
        return generation


def _append(file: BinaryIO, **content: Any) -> None:  # noqa: ANN401 - the fields of an event
    RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


def _as_text(text: bytes) -> Summary.Value:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=CONFIGURATION, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[text]))


def _agree(event: Event, metrics: Mapping[str, float]) -> bool:
    held = {value.tag: value.simple_value for value in event.summary.value}
    return all(held.get(tag) == float(np.float32(value)) for tag, value in metrics.items())


def _events(content: bytes) -> Iterator[tuple[int, Event]]:
    """Yield the end position and content of each event, up to the first incomplete one."""
    began = 0
    header_bytes = _LENGTH.size + _CHECKSUM.size
    while len(header := content[began : began + header_bytes]) == header_bytes:
        start = began + header_bytes
        ended = start + _LENGTH.unpack_from(header)[0] + _CHECKSUM.size
        data = content[start : ended - _CHECKSUM.size]
        checksums = header[_LENGTH.size :] + content[ended - _CHECKSUM.size : ended]
        if checksums != b"".join(_CHECKSUM.pack(masked_crc32c(part)) for part in (header[: _LENGTH.size], data)):
            return
        try:
            yield ended, Event.FromString(data)
        except DecodeError:
            return
        began = ended
