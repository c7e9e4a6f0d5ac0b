"""The verdict on a backtest, after every look at its days has been counted in the store."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from eigen_core.config import Config
from eigen_core.judging.backtest import PlayedSpan
from eigen_core.judging.claim import Evidence, Verdict, judge
from eigen_core.judging.evaluation_log import Looks, keep_look, looks_at
from eigen_core.judging.statistics import Values, sharpe_ratio
from eigen_core.store import Store
from eigen_core.trading.equity import daily_rates


class Chosen(NamedTuple):
    """How the agents that played came to be, as far as it concerns the days that they played.

    Attributes:
        training_days: how many of the days they were trained on.
        choices: validations on some of the days among which they were chosen.
        candidates: a day's returns of the agents that are now to choose from, on the days that choose, float64
            `[days, agents]`.
    """

    training_days: int
    choices: int
    candidates: Values


def counted_verdict(
    store: Store,
    run: str,
    config: Config,
    symbols: Sequence[str],
    weights: torch.Tensor,
    played: PlayedSpan,
    chosen: Chosen,
) -> tuple[Looks, Verdict]:
    """Keep a look in the store's ledger, and return all looks at these days and the verdict that counts them.

    Args:
        store: where runs are kept.
        run: whose agents played.
        config: of the run, with the account's settings.
        symbols: the assets.
        weights: float32 `[agents, parameters]`.
        played: what they earned.
        chosen: how they came to be.

    Validations among which the agents were chosen on these days count as looks. Agents show no skill on days that they
    were trained on.

    Raises:
        InputError, StoreUnavailableError: the ledger cannot be read or written.
    """
    curve, account = played.curve, config.account
    risk_free = daily_rates(account.risk_free, curve.dates)
    first, last = str(curve.dates[0]), str(curve.dates[-1])
    sharpe = sharpe_ratio(curve.returns - risk_free)
    keep_look(store, run, config, (first, last, symbols), weights, one_portfolio=played.one_portfolio, sharpe=sharpe)
    looks = looks_at(store, symbols, first, last)
    verdict = verdict_on(
        played, config, looks=looks.count + chosen.choices, looked_at=looks.sharpes, candidates=chosen.candidates
    )
    if chosen.training_days:
        sentence = f"no skill shown: the agents were trained on {chosen.training_days:,} of these days."
        verdict = replace(verdict, claim="none", sentence=sentence)
    return looks, verdict


def verdict_on(
    played: PlayedSpan,
    config: Config,
    *,
    looks: int = 1,
    looked_at: Sequence[float] = (),
    candidates: Values | None = None,
) -> Verdict:
    """Return the verdict on agents that played a span of days.

    Args:
        played: what they earned.
        config: of the run, with the account's settings.
        looks, looked_at, candidates: see `Evidence`.
    """
    curve, account = played.curve, config.account
    return judge(
        Evidence(
            returns=curve.returns,
            baselines={name: baseline.returns for name, baseline in played.baselines.items()},
            baskets=played.baskets,
            total_return=float(curve.equity[-1] / curve.capital - 1.0),
            matched_returns=played.matched.total_returns,
            excess=played.excess,
            alpha=played.alpha,
            holding_days=played.holding_days,
            looks=looks,
            looked_at=looked_at,
            candidates=candidates,
            periods_per_year=played.periods_per_year,
            risk_free=daily_rates(account.risk_free, curve.dates),
            seed=config.seed,
            matched_description=played.matched.description,
            active_share=played.active_share,
            timing_returns=played.timing.total_returns,
            by_timing=played.by_timing,
        )
    )
