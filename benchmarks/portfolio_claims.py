"""How often the verdict claims skill of portfolios whose skill is known, on years of prices without any pattern."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.results import Section
from eigen_core.account.days import prices_of_span
from eigen_core.config import Config
from eigen_core.judging.claim import Evidence, Verdict, judge
from eigen_core.judging.portfolio import PortfolioMarket
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices, read_market
from eigen_core.randomness import keyed_generator
from eigen_core.trading import Prices
from eigen_core.trading.planted import planted_signal
from eigen_core.trading.portfolio import target_weights
from eigen_core.trading.resampled import unpredictable_prices

_DAYS, _FIRST = 251, 300
_MARKETS, _YEARS = 5, 20
_DRAWS = 200
_SLOW = 60
_EDGES = (0.05, 0.1, 0.2)

Values = NDArray[np.float64]
Scores = Callable[[Panel, Config, str], Values]


def run() -> Section:
    """Judge portfolios of scores without skill of several kinds, and of signals of known information coefficients."""
    config = Config.model_validate({"trading": {"holding_days": 5, "settlement_days": 5}})
    kinds: Mapping[str, Scores] = {
        "new every day": partial(_noise, lasting=1),
        f"lasting {_SLOW} days": partial(_noise, lasting=_SLOW),
        "the same all year": _constant,
        "risky assets": _risky,
        **{f"information coefficient {edge:g}": partial(_informed, edge=edge) for edge in _EDGES},
    }
    found: dict[str, list[Verdict]] = {name: [] for name in kinds}
    prices = read_market(config)
    for seed in range(_MARKETS):
        panel = panel_of_clean_prices(unpredictable_prices(prices, seed), config.market, f"noise {seed}")
        for name, scores in kinds.items():
            found[name] += _judged(panel, config, scores(panel, config, f"{name} {seed}"), f"{name} {seed}")
    rows = []
    for name, verdicts in found.items():
        claimed = sum(verdict.claim == "skill" for verdict in verdicts)
        beat = sum(verdict.matched_pvalue <= 0.05 for verdict in verdicts)
        gained = sum((verdict.excess_pvalue or 1.0) <= 0.05 for verdict in verdicts)
        shares = (f"{number / len(verdicts):.1%}" for number in (claimed, beat, gained))
        rows.append([name, f"{claimed} of {len(verdicts)}", *shares])
    return Section(
        title="Claims of skill, of portfolios whose skill is known",
        method=(
            f"On {_MARKETS} markets made of the bundled prices in which nothing can be predicted, {_YEARS} years each: "
            "weights are the softmax of scores with cash, rebalanced every day. The first four kinds of scores know "
            "nothing: normal draws, moving sums of them, one draw for the year, and betas beside moving sums. The "
            "others are the signal planted for `eigen trust`, whose information coefficient over 5 days is given, as a "
            f"mean of 5 days. Each year is judged by its excess, its alpha and {_DRAWS} permuted portfolios."
        ),
        columns=("scores", "claims", "claimed", "beat 95 % of permuted", "excess above 0 at 5 %"),
        rows=rows,
        remarks=("Rules: 20 assets, fills at the next open, costs and slippage as they are by default.",),
    )


def _judged(panel: Panel, config: Config, scores: Values, key: str) -> Iterator[Verdict]:
    tradable = np.asarray(panel.close) > 0.0
    weights = target_weights(torch.tensor(scores), torch.tensor(tradable)).numpy()
    for year in range(_YEARS):
        first = _FIRST + year * _DAYS
        span = range(first, first + _DAYS)
        market, own = PortfolioMarket(panel, config, span), weights[None, first : first + _DAYS]
        played = market.played(own, market.accounts(own).curve(0), key, draws=_DRAWS)
        yield judge(
            Evidence(
                returns=played.curve.returns,
                baselines={"rebalanced": played.baselines["rebalanced"].returns},
                baskets=played.baskets,
                total_return=float(played.curve.equity[-1] / played.curve.capital - 1.0),
                matched_returns=played.matched.total_returns,
                excess=played.excess,
                alpha=played.alpha,
                holding_days=played.holding_days,
                periods_per_year=played.periods_per_year,
                active_share=played.active_share,
            )
        )


def _draws(panel: Panel, key: str, days: int) -> Values:
    return keyed_generator(0, "portfolio claims", key, "scores").standard_normal((days, panel.assets))


def _noise(panel: Panel, config: Config, key: str, lasting: int) -> Values:  # noqa: ARG001
    drawn = np.cumsum(_draws(panel, key, panel.days + lasting), axis=0)
    scores: Values = (drawn[lasting:] - drawn[:-lasting]) / np.sqrt(lasting)
    return scores


def _constant(panel: Panel, config: Config, key: str) -> Values:  # noqa: ARG001
    years = _draws(panel, key, panel.days // _DAYS + 1)
    scores: Values = years[(np.arange(panel.days) - _FIRST) // _DAYS]
    return scores


def _risky(panel: Panel, config: Config, key: str) -> Values:
    """Twice the assets' betas of all days, over their deviation, and slow noise."""
    known = prices_of_span(Prices.of_panel(panel, torch.device("cpu")), range(panel.days), 0).last_close.numpy()
    returns = np.nan_to_num(np.diff(known, axis=0) / known[:-1])
    market = returns.mean(axis=1)
    beta = returns.T @ (market - market.mean())
    scores: Values = 2.0 * (beta - beta.mean()) / beta.std() + _noise(panel, config, key, _SLOW)
    return scores


def _informed(panel: Panel, config: Config, key: str, edge: float) -> Values:
    signal = planted_signal(panel, config.trading, edge, int(key.rpartition(" ")[2]))
    days = config.trading.holding_days
    summed = np.cumsum(np.concatenate([np.zeros((days, panel.assets)), np.nan_to_num(signal)]), axis=0)
    scores: Values = (summed[days:] - summed[:-days]) / days
    return 2.0 * scores
