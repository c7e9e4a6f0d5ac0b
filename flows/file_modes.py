"""Who may read what Eigen writes. No Prefect in here."""

import os
import re
from collections.abc import Mapping

from eigen_core.errors import InputError

_VARIABLE = "EIGEN_UMASK"
_OWNER_ALONE = "077"


def set_umask(environ: Mapping[str, str]) -> None:
    """Let only the owner read what this process, and those that it starts, write, or whoever EIGEN_UMASK allows.

    Raises:
        InputError: EIGEN_UMASK is no umask.
    """
    text = environ.get(_VARIABLE, "") or _OWNER_ALONE
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise InputError(f"{_VARIABLE} is '{text}', which is no umask: write three octal digits, such as 027.")
    os.umask(int(text, 8))
