"""What no verdict can judge is said before the training."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigen_core.config import Config
from eigen_core.task import open_data


def lines(folder: Path, symbols: int, holdout_days: int, **settings: Any) -> str:
    path = folder / f"{symbols}.csv"
    walk = np.exp(np.cumsum(np.random.default_rng(0).normal(0.0, 0.01, (900, symbols)), axis=0))
    names = [f"S{index}" for index in range(symbols)]
    pd.DataFrame(walk, index=pd.bdate_range("2018-01-01", periods=900), columns=names).to_csv(path, index_label="date")
    market = {"data": str(path), "layout": "wide", "holdout_days": holdout_days}
    return " ".join(open_data(Config.model_validate({"market": market, **settings})).lines)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_one_asset_needs_enough_days_to_judge_its_timing(tmp_path: Path, task: str) -> None:
    given: dict[str, Any] = {"task": task, "trading": {"trading_days": 10, "holding_days": 20, "settlement_days": 20}}
    assert "no verdict on it will be possible" in lines(tmp_path, 1, 59, **given)
    enough = lines(tmp_path, 1, 60, **given)
    assert "no verdict" not in enough
    assert "timing is all that a verdict can judge" in enough
    assert "timing" not in lines(tmp_path, 2, 59, **given)
