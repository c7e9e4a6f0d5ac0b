"""Reports of accounts that never were."""

import datetime

import numpy as np
import pandas as pd
from equity_cases import curve_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.reporting.compare import Comparison
from eigen_core.reporting.report import Fact, Fold, Report, Setting

BASELINES = ("cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic", "initial_population")
SENTENCE = "No skill shown: the agent's excess per trade is 0.02 ± 0.11 %, and the basket of all assets earned as much."


def report_of(days: int = 400, draws: int = 300, folds: int = 0, **given: object) -> Report:
    """A report of random accounts; `given` replaces parts of it."""
    draw = keyed_generator(3, 0, "test", 0, "report")
    dates = pd.bdate_range("2012-11-01", periods=days)
    market = draw.normal(0.0006, 0.01, days)

    def account(beta: float) -> "pd.Series[float]":
        return pd.Series(beta * market + draw.normal(0.0, 0.003, days), index=dates)

    curve = curve_of(account(0.8), exposure=draw.uniform(0.2, 1.0, days), traded=draw.uniform(0.0, 90.0, days))
    bought = draw.integers(0, days - 21, 40)
    trades = pd.DataFrame(
        {
            "symbol": draw.choice(["AAPL", "MSFT", "BRK.B"], 40),
            "fill": dates[bought],
            "exit": dates[bought + draw.integers(1, 21, 40)],
            "shares": draw.uniform(1.0, 9.0, 40),
            "paid": 50.0,
            "costs": 0.1,
            "gain": draw.normal(0.3, 2.0, 40),
            "reason": "time",
        }
    )
    trades["received"] = trades["paid"] + trades["gain"]
    ends = dates[np.linspace(0, days - 1, folds + 1).astype(int)].date.tolist()
    values: dict[str, object] = {
        "run": "mine",
        "agent": "champion, agent 3 of generation 7",
        "span": "holdout",
        "claim": "none",
        "sentence": SENTENCE,
        "facts": [Fact("Sharpe", "0.62", "−0.4 to 1.7 (95 %)"), Fact("Looks at these days", "12")],
        "curve": curve,
        "baselines": {name: curve_of(account(0.0 if name == "cash" else 1.0)) for name in BASELINES},
        "benchmark": "equal_weight",
        "matched": draw.normal(0.1, 0.05, draws),
        "quantile": 0.75,
        "trades": trades,
        "by_asset": _by_asset(trades),
        "periods_per_year": 252.0,
        "risk_free": 0.0,
        "preset": "quickstart",
        "folds": [Fold(f"fold {k + 1}", _after(ends[k], k), ends[k + 1]) for k in range(folds)],
        "looks": "These days were looked at 12 times by 2 runs.",
        "looked": [{"Run": "mine", "Agent": "champion", "Looks": "7"}],
        "data": ["Read 10 rows from prices.csv (long).", "No symbol ends before the last day: survivorship."],
        "settings": [Setting("seed", "1", None), Setting("generations", "20", "10")],
        "commands": ["eigen train --preset quickstart --run mine --generations 20", "eigen report mine"],
        "hashes": [Fact("Weights", "a" * 64)],
    }
    return Report(**(values | given))  # type: ignore[arg-type]


def _by_asset(trades: pd.DataFrame) -> pd.DataFrame:
    grouped = trades.assign(won=trades["gain"] > 0.0).groupby("symbol")
    table = grouped.agg(trades=("gain", "size"), won=("won", "mean"), gain=("gain", "sum"))
    return table.sort_values("gain", ascending=False).reset_index()


def _after(day: datetime.date, fold: int) -> datetime.date:
    """The first day of a fold; folds but the first one begin after the last day of that before."""
    return day if fold == 0 else day + datetime.timedelta(days=1)


def comparison_of(**given: object) -> Comparison:
    """A comparison of two random accounts with a benchmark; `given` replaces parts of it."""
    report = report_of()
    names = {"mine": "reversal", "a-second-run-with-a-long-name": "momentum"}
    values: dict[str, object] = {
        "span": "holdout",
        "curves": {run: report.baselines[name] for run, name in names.items()},
        "figures": {run: report.baseline_figures[name] for run, name in names.items()},
        "claims": dict.fromkeys(names, "none"),
        "sentences": dict.fromkeys(names, SENTENCE),
        "benchmark": ("Equal weight", report.baselines["equal_weight"], report.baseline_figures["equal_weight"]),
        "differences": {"learner.gamma": {"mine": "0.99", "a-second-run-with-a-long-name": "0.9"}},
        "periods_per_year": 252.0,
        "risk_free": 0.0,
    }
    return Comparison(**(values | given))  # type: ignore[arg-type]
