"""Processes that must not outlive the one that started them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress


def stop_with_this_process(pid: int) -> Callable[[], None]:
    """Leave a shell behind that ends process `pid` when this process has ended, however it ended.

    Returns what makes the shell end without doing so, to be called once process `pid` has ended by itself.
    """
    shell = shutil.which("sh")
    if shell is None:
        return lambda: None
    reading, writing = os.pipe()
    # The writing end stays open, unread and uninherited, as long as this process lives.
    os.set_inheritable(writing, False)
    subprocess.Popen(
        [shell, "-c", 'read -r _ || kill -TERM "$0" 2>/dev/null', str(pid)],
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
