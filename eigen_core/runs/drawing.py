"""Lets a separate process draw the plots of a run: `main` of `eigen_core.reporting.plots`."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

from eigen_core.common.files import replacing
from eigen_core.common.records import Curve, GenerationRecord, RecordLog, Telemetry

# Training imports nothing that draws. Objects that imports create are never freed: collecting garbage among them only
# takes time.
_DRAW = "import gc; gc.disable(); from eigen_core.reporting.plots import main; gc.freeze(); gc.enable(); main()"


class DrawingError(RuntimeError):
    """The process that draws the plots failed; the message has its last line on standard error."""


class Drawing:
    """Draws the plots of a run once, in a process that the constructor starts and that waits for `begin`."""

    def __init__(self) -> None:
        self._archive = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as above
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _DRAW],
            stdin=subprocess.PIPE,
            stdout=self._archive,
            stderr=self._errors,
            # Ctrl-C reaches only the training, which stops this process.
            start_new_session=True,
        )

    def begin(
        self, history: RecordLog[GenerationRecord], telemetry: RecordLog[Telemetry], curves: Sequence[Curve]
    ) -> None:
        head = {"records": len(history), "curves": [asdict(curve) for curve in curves]}
        assert self._process.stdin is not None
        # If the process has exited, `write` raises its error.
        with suppress(BrokenPipeError), self._process.stdin as given:
            for line in chain([json.dumps(head).encode()], history.lines(), telemetry.lines()):
                given.write(line + b"\n")

    def is_done(self) -> bool:
        return self._process.poll() is not None

    def write(self, folder: Path) -> list[Path]:
        """Wait for the plots; write each into `folder` in one step, and return the files. Raises `DrawingError`."""
        status = self._process.wait()
        if status != 0:
            self._errors.seek(0)
            *_, last = self._errors.read().decode(errors="replace").splitlines() or [f"exit status {status}"]
            raise DrawingError(f"the plotting process failed: {last}")
        paths = []
        with ZipFile(self._archive) as drawn:
            for name in drawn.namelist():
                with replacing(folder / name) as opened:
                    opened.write(drawn.read(name))
                paths.append(folder / name)
        return paths

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._archive.close()
        self._errors.close()
