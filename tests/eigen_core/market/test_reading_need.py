"""Price files that do not fit into memory are refused before they are read, not killed by the kernel."""

import gzip
from pathlib import Path

import pytest
from market_cases import small_config

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.market import build_panel
from eigen_core.memory.process import own_resident_bytes


def limited(path: Path, free_bytes: int) -> Config:
    """The configuration of a panel under a limit that leaves this process about so much."""
    limit = (own_resident_bytes() + free_bytes) / 0.9 / 1e9
    return small_config(path).model_copy(update={"memory": Config(memory={"limit_gb": limit}).memory})


@pytest.mark.parametrize("packed", [False, True])
def test_prices_that_do_not_fit_are_refused_unread(tmp_path: Path, packed: bool) -> None:
    text = b"date,symbol,open,high,low,close,volume\n" + b"no row is read\n" * 4_000_000
    path = tmp_path / ("prices.csv.gz" if packed else "prices.csv")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    with pytest.raises(InputError, match=r"holds 60(\.\d)? MB of prices: to read them takes some 480"):
        build_panel(limited(path, 100_000_000), tmp_path / "cache")


def test_a_wide_file_takes_more(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(b"date,AAA,BBB\n" + b"no row is read\n" * 4_000_000)
    config = limited(path, 1_000_000_000)
    wide = config.model_copy(update={"market": config.market.model_copy(update={"layout": "wide"})})
    with pytest.raises(InputError, match=r"holds 60(\.\d)? MB of prices: to read them takes some 1\.56 GB"):
        build_panel(wide, tmp_path / "cache")


def test_a_damaged_file_is_called_damaged_whatever_length_it_states(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv.gz"
    path.write_bytes(gzip.compress(b"date,close\n2020-01-02,1\n" * 9)[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(InputError, match="is damaged"):
        build_panel(limited(path, 1_000_000_000), tmp_path / "cache")
