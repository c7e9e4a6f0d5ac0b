"""Processes that must not outlive the one that started them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress

# The shell reads what this process writes, or that it has ended.
_STOP = 'read -r _ && exit 0; kill -TERM "$0" 2>/dev/null'
# Looks each second whether the process is still there: later another one may have its number.
_STOP_THEN_KILL = f"""{_STOP}
left=$1
while kill -0 "$0" 2>/dev/null; do
  if [ "$left" -le 0 ]; then kill -KILL "$0"; exit; fi
  sleep 1
  left=$((left - 1))
done"""


def stop_with_this_process(pid: int, kill_after_seconds: int | None = None) -> Callable[[], None]:
    """Leave a shell behind that ends process `pid` when this process has ended, however it ended.

    Args:
        pid: of the process, which is asked to end (SIGTERM).
        kill_after_seconds: if it has not ended so long after, it is killed; None: it may take its time.

    Returns:
        What makes the shell end without doing so, to be called once process `pid` has ended by itself.
    """
    shell = shutil.which("sh")
    if shell is None:
        return lambda: None
    reading, writing = os.pipe()
    # The writing end stays open, unread and uninherited, as long as this process lives.
    os.set_inheritable(writing, False)
    script = [_STOP, str(pid)]
    if kill_after_seconds is not None:
        script = [_STOP_THEN_KILL, str(pid), str(kill_after_seconds)]
    subprocess.Popen(
        [shell, "-c", *script],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)

    def release() -> None:
        with suppress(BrokenPipeError):
            os.write(writing, b"\n")
        os.close(writing)

    return release
