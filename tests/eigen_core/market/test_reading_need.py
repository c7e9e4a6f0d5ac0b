"""Price files that do not fit into memory are refused before they are read, not killed by the kernel."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import small_config

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.machine.usage import own_resident_bytes
from eigen_core.market import build_panel
from eigen_core.market.files import BYTES_PER_BYTE, WIDE_BYTES_PER_BYTE


def limited(path: Path, free_bytes: int) -> Config:
    """The configuration of a panel under a limit that leaves this process about so much."""
    limit = (own_resident_bytes() + free_bytes) / 0.9 / 1e9
    return small_config(path).model_copy(update={"memory": Config(memory={"limit_gb": limit}).memory})


@pytest.mark.parametrize("packed", [False, True])
def test_prices_that_do_not_fit_are_refused_unread(tmp_path: Path, packed: bool) -> None:
    text = b"date,symbol,open,high,low,close,volume\n" + b"no row is read\n" * 4_000_000
    path = tmp_path / ("prices.csv.gz" if packed else "prices.csv")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    with pytest.raises(InputError, match=r"holds 60(\.\d)? MB of prices: to read them takes some 540"):
        build_panel(limited(path, 100_000_000), tmp_path / "cache")


def test_a_wide_file_takes_more(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(b"date,AAA,BBB\n" + b"no row is read\n" * 4_000_000)
    config = limited(path, 1_000_000_000)
    wide = config.model_copy(update={"market": config.market.model_copy(update={"layout": "wide"})})
    with pytest.raises(InputError, match=r"holds 60(\.\d)? MB of prices: to read them takes some 1\.56 GB"):
        build_panel(wide, tmp_path / "cache")


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "expected"), [("wide", WIDE_BYTES_PER_BYTE), ("long", BYTES_PER_BYTE)])
def test_reading_takes_no_more_memory_than_is_expected(tmp_path: Path, layout: str, expected: int) -> None:
    steps = np.random.default_rng(1).standard_normal((3_000, 1_000 if layout == "wide" else 150))
    closes = pd.DataFrame(100.0 * np.exp(0.001 * np.cumsum(steps, axis=0))).round(2).add_prefix("S")
    closes.insert(0, "date", pd.bdate_range("2005-01-03", periods=len(closes)))
    if layout == "long":
        closes = closes.melt("date", var_name="symbol", value_name="close")
        closes = closes.assign(open=closes["close"], high=closes["close"], low=closes["close"], volume=123_456)
    path = tmp_path / "prices.csv"
    closes.to_csv(path, index=False)
    code = f"""
from pathlib import Path
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.machine.usage import peak_resident_bytes
config = load_config(None, ["market.data={path}", "market.layout={layout}", "market.suspicious=keep"])
before = peak_resident_bytes()
build_panel(config, Path("{tmp_path}"))
print(peak_resident_bytes() - before)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(ended.stdout) <= expected * path.stat().st_size


def test_a_damaged_file_is_called_damaged_whatever_length_it_states(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv.gz"
    path.write_bytes(gzip.compress(b"date,close\n2020-01-02,1\n" * 9)[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(InputError, match="is damaged"):
        build_panel(limited(path, 1_000_000_000), tmp_path / "cache")
