"""A package with feature functions, installed as `pip` installs one: a module, and metadata with its entry points."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FUNCTIONS = '''
import numpy as np


def gap(bars):
    """Log of the open over the close of the day before."""
    values = np.full(len(bars.close), np.nan)
    values[1:] = np.log(bars.open[1:] / bars.close[:-1])
    return values


def calendar(bars):
    """Weekday and month."""
    days = bars.dates.astype(np.int64)
    return {"weekday": (days + 3) % 7, "month": bars.dates.astype("datetime64[M]").astype(np.int64) % 12}


def centred(bars):
    """Distance to a mean that five later days are part of."""
    padded = np.pad(np.log(bars.close), 5, mode="edge")
    return np.log(bars.close) - np.convolve(padded, np.ones(11) / 11, mode="valid")


def whole_score(bars):
    """Close in standard deviations of the whole series."""
    return (bars.close - bars.close.mean()) / bars.close.std()


def next_return(bars):
    """Log return of the next day."""
    return np.append(np.diff(np.log(bars.close)), np.nan)
'''


def install_features(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    functions: Sequence[str],
    source: str = FUNCTIONS,
    module: str = "my_features",
) -> None:
    """Let a package with `functions` of `source` be installed until the test ends, in a new folder for other code."""
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {module}:{name}" for name in functions]
    (metadata / "entry_points.txt").write_text("\n".join(["[eigen.features]", *lines, ""]), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    # A module of another test, or of before the code was changed; it is forgotten again when this one ends.
    monkeypatch.setitem(sys.modules, module, None)
    del sys.modules[module]
