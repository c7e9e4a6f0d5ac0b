"""The pictures of the README: a walk forward on the bundled prices, and on the same prices with a planted edge.

`python -m benchmarks.walks [--edge 0.1] [--preset NAME]` trains both (`eigen walk`, some minutes each) and writes
docs/images/walk.png and docs/images/walk-planted.png; it prints the verdicts, which the captions quote.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.trading.synthetic import FEATURE, planted_signal

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_FOLDS = 8


def write_planted_prices(config: Config, edge: float, path: Path) -> None:
    """Write the prices of a configuration with one more column, as CSV with one row per date and symbol.

    `edge` is the column's correlation, over assets, with the return over the holding time; its noise is drawn with the
    configuration's seed.
    """
    panel, _ = build_panel(config)
    signal = planted_signal(panel, config.trading, edge, config.seed)
    table = pd.DataFrame(
        {
            "date": np.repeat(np.asarray(panel.dates), panel.assets),
            "symbol": np.tile(panel.symbols[: panel.assets], panel.days),
            "close": np.asarray(panel.close).ravel(),
            FEATURE: signal.ravel(),
        }
    )
    table.dropna(subset="close").to_csv(path, index=False)


def walk_picture(name: str, folder: Path, options: list[str], picture: Path) -> str:
    command = [sys.executable, "-P", "-m", "flows.cli", "walk", name, "--folds", str(_FOLDS), "--json", *options]
    found = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
    shutil.copyfile(next((folder / "runs").rglob("equity.png")), picture)
    sentence: str = json.loads(found.stdout)["verdict"]["sentence"]
    return sentence


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__)
    parser.add_argument("--edge", type=float, default=0.1, help="information coefficient of the planted column")
    parser.add_argument("--preset", default="counterfactual")
    arguments = parser.parse_args()
    config = load_config(arguments.preset, ["device=cpu"])
    options = ["--preset", arguments.preset, "--device", "cpu"]
    with TemporaryDirectory() as bare, TemporaryDirectory() as planted:
        print(walk_picture("years", Path(bare), options, _IMAGES / "walk.png"), flush=True)
        prices = Path(planted) / "planted.csv"
        write_planted_prices(config, arguments.edge, prices)
        options += ["--data", str(prices), "--set", 'market.own_features=["columns"]']
        print(walk_picture("planted", Path(planted), options, _IMAGES / "walk-planted.png"))


if __name__ == "__main__":
    main()
