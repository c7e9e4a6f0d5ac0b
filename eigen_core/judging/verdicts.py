"""The verdict: whether an agent shows skill, by a stated rule that counts every look at the days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from eigen_core.common.records import Excess
from eigen_core.common.text import change, count, percent, ratio
from eigen_core.config import Config
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.statistics import (
    Values,
    corrected,
    daily_alpha,
    deflated_sharpe,
    sharpe_interval,
    superiority,
)
from eigen_core.trading.equity import daily_rates

Claim = Literal["skill", "none", "undecided"]

SIGNIFICANCE = 0.05
"""Greatest probability of a claim of skill without skill."""
POWER = 0.8
"""Share of the trials in which an edge must show to count as one that could have been found."""
BASKET = 0.9
"""Correlation of daily returns with those of equal weight, or share of a portfolio that is equal weight, from which an
agent is the basket of all assets."""
_LOST = "it earned no more than its part in the market's moves explains; "


@dataclass(frozen=True)
class Evidence:
    """Evidence about an agent on a span of days.

    Attributes:
        returns: of its account, a day, float64 `[days]`.
        baselines: returns of other accounts, float64 `[days]` by name.
        baskets: those of the baselines that hold all assets.
        total_return: of its account over the span.
        matched_returns: total returns of random traders matched to the agent, float64 `[draws]`.
        excess, alpha, holding_days, active_share: see `SpanResult`; trades that overlap are not independent.
        periods_per_year: days of trading a year.
        looks: results on these days among which this one was chosen, itself included.
        looked_at: known Sharpe ratios of a day among them.
        risk_free: return without risk on each day, float64 `[days]`, or on any day.
        seed: of the bootstraps.
        matched_description: common properties of agent and matched traders, in words.
        timing_returns: total returns of the agent's decisions at other times, float64 `[shifts]`.
        by_timing: there is one asset, and the matched traders are those decisions.
    """

    returns: Values
    baselines: Mapping[str, Values]
    baskets: Sequence[str]
    total_return: float
    matched_returns: Values
    excess: Excess | None
    alpha: Excess | None
    holding_days: int
    periods_per_year: float
    looks: int = 1
    looked_at: Sequence[float] = ()
    risk_free: Values | float = 0.0
    seed: int = 0
    matched_description: str = "random traders"
    active_share: float | None = None
    timing_returns: Values = field(default_factory=lambda: np.empty(0))
    by_timing: bool = False


@dataclass(frozen=True)
class Verdict:
    """Conclusion of the evidence. Undefined values are None. Probabilities are corrected for looks.

    Attributes:
        claim: `skill`, `none`, or `undecided` where the data are too few to tell.
        sentence: the claim with its reasons, for users.
        sharpe_interval: 95 % interval of the Sharpe ratio of a year.
        deflated_sharpe: probability that the true Sharpe ratio is above 0.
        spa_pvalue: of the lead over the best baseline; not corrected for looks.
        matched_pvalue: probability that a matched random trader earns as much.
        excess_pvalue, alpha_pvalue: of the excess and its alpha.
        basket_correlation: greatest correlation of the daily returns with a basket of all assets.
        smallest_edge: excess (%) that would have been claimed in 80 % of trials.
        looks: results on these days.
        timing_pvalue: probability that the same decisions at another time earn as much.
    """

    claim: Claim
    sentence: str
    sharpe_interval: tuple[float, float] | None
    deflated_sharpe: float | None
    spa_pvalue: float | None
    matched_pvalue: float
    excess_pvalue: float | None
    alpha_pvalue: float | None
    basket_correlation: float | None
    smallest_edge: float | None
    looks: int
    timing_pvalue: float


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict on an agent.

    Skill is claimed if, after the correction for looks, all of these hold: the agent's return lies in the upper 5 % of
    the matched random traders'; its excess is positive at 5 % (one-sided, by Student's t with as many degrees of
    freedom as there are holding times in the span, less one); and so is the excess's alpha, since a preference for
    risky assets earns more than a rising market. Otherwise no skill is shown where the agent is the basket (a portfolio
    of weights: at least 90 % of it are equal weight; else by `BASKET`), or where it gained no more than the market or
    the median of the matched random traders; the rest is undecided. In any case no skill is shown where the account's
    daily returns, with all costs paid, have no positive alpha on the first basket.
    """
    looks, daily = max(evidence.looks, 1), evidence.returns - evidence.risk_free
    matched, timing = (
        corrected((1.0 + (draws >= evidence.total_return).sum()) / (1.0 + len(draws)), looks)
        for draws in (evidence.matched_returns, evidence.timing_returns)
    )
    freedom = max(len(daily) / evidence.holding_days - 1.0, 1.0)
    excess_pvalue, smallest = _excess(evidence.excess, freedom, looks)
    alpha_pvalue, _ = _excess(evidence.alpha, freedom, looks)
    correlation = _basket_correlation(evidence)
    pvalues = [matched, *(1.0 if pvalue is None else pvalue for pvalue in (excess_pvalue, alpha_pvalue))]
    lost = _lost(evidence, daily)
    basket = _basket(evidence, correlation)
    claim: Claim = "none" if lost else _claim(evidence, max(pvalues), basket)
    interval, year = sharpe_interval(daily, evidence.seed), evidence.periods_per_year**0.5
    return Verdict(
        claim=claim,
        sentence=_sentence(
            evidence, claim, matched, basket or (_LOST if lost else ""), _missing(pvalues, evidence, smallest)
        ),
        sharpe_interval=None if interval is None else (interval[0] * year, interval[1] * year),
        deflated_sharpe=deflated_sharpe(daily, looks, evidence.looked_at),
        spa_pvalue=superiority(evidence.returns, evidence.baselines, evidence.seed),
        matched_pvalue=matched,
        excess_pvalue=excess_pvalue,
        alpha_pvalue=alpha_pvalue,
        basket_correlation=correlation,
        smallest_edge=smallest,
        looks=looks,
        timing_pvalue=timing,
    )


def _excess(excess: Excess | None, freedom: float, looks: int) -> tuple[float | None, float | None]:
    """Return the corrected one-sided p-value of an excess, and the smallest excess that would mostly be claimed."""
    if excess is None or excess.standard_error == 0.0:
        return None, None
    error = excess.standard_error
    each = corrected_significance(looks)
    smallest = float(student.isf(each, freedom) + norm.isf(1.0 - POWER)) * error
    return corrected(float(student.sf(excess.mean / error, freedom)), looks), smallest


def corrected_significance(looks: int) -> float:
    """Return the significance of each of `looks` results, of which together one claims by luck with `SIGNIFICANCE`."""
    return float(1.0 - (1.0 - SIGNIFICANCE) ** (1.0 / looks))


def _lost(evidence: Evidence, daily: Values) -> bool:
    """Return whether the account earned no more than its part in the moves of the first basket, if there is one."""
    baskets = [name for name in evidence.baskets if name in evidence.baselines]
    if not baskets:
        return False
    alpha = daily_alpha(daily, evidence.baselines[baskets[0]] - evidence.risk_free)
    return alpha is None or alpha <= 0.0


def _claim(evidence: Evidence, pvalue: float, basket: str) -> Claim:
    """Return the claim; `pvalue` is the greatest of all conditions, `basket` is empty if the agent is none."""
    if pvalue <= SIGNIFICANCE:
        return "skill"
    if basket or evidence.excess is None or evidence.excess.mean <= 0.0:
        return "none"
    return "none" if _share_below(evidence) <= 0.5 else "undecided"


def _basket(evidence: Evidence, correlation: float | None) -> str:
    """Return that the agent is the basket of all assets, in words; empty if it is not."""
    if evidence.active_share is not None:
        held = 1.0 - evidence.active_share
        weights = f"{percent(held, 0)} of its weights are those of equal weight, the basket of all assets; "
        return weights if held >= BASKET else ""
    if correlation is None or correlation < BASKET:
        return ""
    basket = "the asset itself" if evidence.by_timing else "the basket of all assets"
    return f"it is {basket}, whose daily returns correlate {ratio(correlation)} with its own; "


def _share_below(evidence: Evidence) -> float:
    draws = evidence.matched_returns
    if not len(draws):
        return 0.5
    return float((draws < evidence.total_return).mean() + (draws == evidence.total_return).mean() / 2.0)


def _basket_correlation(evidence: Evidence) -> float | None:
    baskets = [evidence.baselines[name] for name in evidence.baskets if name in evidence.baselines]
    known = [basket for basket in baskets if basket.std() > 0.0 and evidence.returns.std() > 0.0]
    return max((float(np.corrcoef(evidence.returns, basket)[0, 1]) for basket in known), default=None)


def _edge(evidence: Evidence, smallest: float | None) -> str:
    if corrected(1.0 / (1.0 + len(evidence.matched_returns)), evidence.looks) > SIGNIFICANCE:
        kind = "shifts in time" if evidence.by_timing else "random traders"
        return f"after so many looks {len(evidence.matched_returns):,} {kind} are too few to show any edge"
    if smallest is None or evidence.excess is None:
        return "no edge could have been shown"
    return f"the smallest edge that could have been shown is {change(smallest)} % a {evidence.excess.per}"


def _missing(pvalues: Sequence[float], evidence: Evidence, smallest: float | None) -> str:
    """Return the reason why skill was not claimed: luck in the alpha alone, or too small an edge."""
    *others, alpha = pvalues
    if max(others) <= SIGNIFICANCE < alpha:
        return f"by luck alone, the excess that the market's moves do not explain has a probability of {percent(alpha)}"
    return _edge(evidence, smallest)


def _earned(evidence: Evidence) -> str:
    earned = f"it earned {change(100.0 * evidence.total_return, 1)} %"
    baskets = [name for name in evidence.baskets if name in evidence.baselines]
    if not baskets:
        return earned
    basket = float(np.prod(1.0 + evidence.baselines[baskets[0]]) - 1.0)
    return f"{earned}, {baskets[0].replace('_', ' ')} {change(100.0 * basket, 1)} %"


def _against(evidence: Evidence) -> str:
    if not evidence.by_timing or evidence.excess is None:
        return "the market"
    return "as much of the asset on all days" if evidence.excess.per == "year" else "the asset bought on any day"


def _sentence(evidence: Evidence, claim: Claim, matched: float, reason: str, missing: str) -> str:
    looks = f"after {count(max(evidence.looks, 1), 'look')} at these days"
    if evidence.excess is None:
        return f"no skill shown: it made fewer than two trades ({looks})."
    gained = f"beyond {_against(evidence)} it gained {evidence.excess}"
    draws = f"{len(evidence.matched_returns):,} {evidence.matched_description}"
    compared = f"{_earned(evidence)}; {gained}, and {percent(_share_below(evidence), 0)} of {draws} earned less"
    if claim == "skill":
        return f"skill is likely: {compared}; by luck alone that has a probability of {percent(matched)} {looks}."
    if claim == "undecided":
        return f"too little data to tell: {missing}; {compared} ({looks})."
    return f"no skill shown: {reason}{compared} ({looks}; {missing})."


def verdict_on(played: SpanResult, config: Config, *, looks: int = 1, looked_at: Sequence[float] = ()) -> Verdict:
    """Return the verdict on agents that played a span of days; for the last arguments see `Evidence`."""
    curve = played.curve
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
            periods_per_year=played.periods_per_year,
            risk_free=daily_rates(played.risk_free, curve.dates),
            seed=config.seed,
            matched_description=played.matched.description,
            active_share=played.active_share,
            timing_returns=played.timing.total_returns,
            by_timing=played.by_timing,
        )
    )
