"""The pictures of the README: a walk forward on the bundled prices, and on the same prices with a planted edge.

`python -m benchmarks.walks [--edge 0.1] [--preset NAME]` trains both (`eigen walk`, some minutes each) and writes
docs/images/walk.png and docs/images/walk-planted.png; it prints the verdicts, which the captions quote. `python -m
benchmarks.walks --ridge` prints the rows of the baseline `ridge` in docs/results.md instead, and trains no agents.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import numpy as np
import pandas as pd
import torch

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.judging.backtest import backtest_class
from eigen_core.judging.walk_forward import WalkResult, load_walk, plan_walk, play_walk, pool_excess, with_purge
from eigen_core.market import build_panel
from eigen_core.reporting.report_plots import BASELINE_COLOURS, NAMES, draw_equity
from eigen_core.reporting.style import CHAMPION, figure_file, footnote
from eigen_core.trading.synthetic import FEATURE, planted_signal

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_FOLDS = 8
# Letters that fit into the line under the title.
_SUBTITLE_LETTERS = 118


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
    sentence: str = json.loads(found.stdout)["verdict"]["sentence"]
    draw_walk(play_walk(load_walk(str(folder / "runs"), name)), sentence, picture)
    return sentence


def draw_walk(result: WalkResult, sentence: str, picture: Path) -> None:
    """Draw the equity of a walk's champions and of the baselines as a PNG file, below its verdict."""
    shown = {"Champions": result.curve, **{NAMES[name]: curve for name, curve in result.baselines.items()}}
    colours = {"Champions": CHAMPION, **{NAMES[name]: BASELINE_COLOURS[name] for name in result.baselines}}
    subtitle = shorten(sentence.split(";")[0], _SUBTITLE_LETTERS, placeholder=" …")
    with figure_file(picture, "Walk forward", subtitle) as figure:
        axes = figure.add_axes((0.08, 0.13, 0.67, 0.70))
        draw_equity(axes, shown, colours, [fold.played.last for fold in result.walk.folds])
        footnote(figure, "Dotted: the last day of a fold. The next is played by a champion that was trained later.")


def ridge_row(preset: str, settings: list[str], folder: Path, edge: float | None = None) -> str:
    """Return what `ridge` earns in the folds of a walk; `edge`: on the prices with a planted column of this edge."""
    config = load_config(preset, ["device=cpu", *settings])
    if edge is not None:
        write_planted_prices(config, edge, folder / "planted.csv")
        given = [f"market.data={folder / 'planted.csv'}", 'market.own_features=["columns"]']
        config = load_config(preset, ["device=cpu", *settings, *given])
    config = with_purge(config, None)
    walk = plan_walk("ridge", config, np.asarray(build_panel(config)[0].dates), _FOLDS)
    grown, matched, excess = 1.0, np.ones(1), []
    for _, of_fold in walk.runs():
        panel, _ = build_panel(of_fold)
        played = backtest_class(of_fold)(of_fold, panel, torch.device("cpu")).play_ridge(panel.splits.holdout)
        grown *= 1.0 + played.metrics.total_return
        matched = matched * (1.0 + played.matched.total_returns)
        excess.append(played.excess)
    pooled = pool_excess([excess])
    assert pooled is not None
    beyond = f"{pooled.mean:+.2f} ± {pooled.standard_error:.2f} % a {pooled.per}"
    return f"{100.0 * (grown - 1.0):.1f} %, {beyond}, {np.mean(matched < grown):.0%} of matched random traders"


def print_ridge(edge: float) -> None:
    for data, planted in (("", None), ("us5", None), ("", edge)):
        days = [[f"trading.{name}_days={held}" for name in ("holding", "settlement")] for held in (5, 20)]
        for preset, held in (("quickstart", days[0]), ("quickstart", days[1]), ("portfolio", [])):
            settings = [*held, *([f"market.data={data}"] if data else [])]
            with TemporaryDirectory() as folder:
                row = ridge_row(preset, settings, Path(folder), planted)
            print(data or "bundled", planted or "", preset, *held, row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__)
    parser.add_argument("--edge", type=float, default=0.1, help="information coefficient of the planted column")
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--ridge", action="store_true", help="print the rows of `ridge` only")
    arguments = parser.parse_args()
    if arguments.ridge:
        print_ridge(arguments.edge)
        return
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
