"""Reports of accounts that never were."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from trading_cases import curve_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.run_backtests import Backtest
from eigen_core.judging.verdicts import Verdict
from eigen_core.judging.walk_forward import Days, Fold
from eigen_core.reporting.compare import Comparison
from eigen_core.reporting.report import Fact, Report, Setting
from eigen_core.runs.evaluation_log import Looks
from eigen_core.trading.baselines import MatchedTraders

BASELINES = ("cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic", "initial_population")
SENTENCE = "No skill shown: the agent's excess per trade is 0.02 ± 0.11 %, and the basket of all assets earned as much."


def report_of(days: int = 400, draws: int = 300, folds: int = 0, **given: Any) -> Report:
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
    ends = dates[np.linspace(0, days - 1, folds + 1).astype(int)]
    known = Days("2000-01-03", "2000-12-29")
    spans = [Days(str(first.date()), str(last.date())) for first, last in pairwise(ends)]
    played: dict[str, Any] = {
        "curve": curve,
        "baselines": {name: curve_of(account(0.0 if name == "cash" else 1.0)) for name in BASELINES},
        "matched": MatchedTraders(draw.normal(0.1, 0.05, draws), "matched random traders"),
        "timing": MatchedTraders(np.zeros(0), "shifts"),
        "trades": trades,
        "periods_per_year": 252,
        "risk_free": 0.0,
        "interest": 0.0,
        "one_portfolio": False,
        "excess": None,
        "alpha": None,
        "holding_bars": 20,
    }
    names = {field.name for field in dataclasses.fields(SpanResult)}
    played |= {name: given.pop(name) for name in names & given.keys()}
    verdict: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Verdict))
    verdict |= {"claim": given.pop("claim", "none"), "sentence": given.pop("sentence", SENTENCE)}
    report: dict[str, Any] = {
        "run": "mine",
        "agent": "champion, agent 3 of generation 7",
        "span": "holdout",
        "facts": [Fact("Sharpe", "0.62", "−0.4 to 1.7 (95 %)"), Fact("Looks at these days", "12")],
        "preset": "quickstart",
        "folds": [Fold(number, known, known, span) for number, span in enumerate(spans, 1)],
        "looks": "These days were looked at 12 times by 2 runs.",
        "data": ["Read 10 rows from prices.csv (long).", "No symbol ends before the last day: survivorship."],
        "settings": [Setting("seed", "1", None), Setting("generations", "20", "10")],
        "commands": ["eigen train --preset quickstart --run mine --generations 20", "eigen report mine"],
        "hashes": [Fact("Weights", "a" * 64)],
    }
    return Report(played=SpanResult(**played), verdict=Verdict(**verdict), **(report | given))


def comparison_of() -> Comparison:
    report, accounts = report_of(), {"mine": "reversal", "a-second-run-with-a-long-name": "momentum"}
    known = {field.name: getattr(report.played, field.name) for field in dataclasses.fields(SpanResult)}
    return Comparison(
        {
            run: Backtest(
                **(known | {"curve": report.played.baselines[account]}),
                run=run,
                agent="champion",
                agents=1,
                generation=7,
                span="holdout",
                config=Config(preset="ddpg", learner={"gamma": 0.9 if account == "momentum" else 0.99}),
                looks=Looks((), 0),
                verdict=report.verdict,
                folder=Path("nowhere"),
            )
            for run, account in accounts.items()
        }
    )
