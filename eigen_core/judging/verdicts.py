"""The verdict: whether agents show skill, by a stated rule that counts every look (earlier result) at the same days."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

from eigen_core.common.records import Excess
from eigen_core.common.text import change, count, percent, ratio
from eigen_core.config import Config
from eigen_core.judging.backtest import DRAWS, SpanResult
from eigen_core.judging.significance import FEWEST_DAYS, SIGNIFICANCE, detectable_ratio, significance_of_each
from eigen_core.judging.statistics import Values, corrected, deflated_sharpe, sharpe_interval, superiority
from eigen_core.trading.equity import daily_rates

Claim = Literal["skill", "none", "undecided"]

BASKET = 0.9
"""An agent counts as the basket of all assets if its daily returns correlate with those of equal weights by at least
this, or if at least this share of its portfolio has equal weights."""
MOST_DRAWS = 20_000
"""Most random traders that `draws_for` asks for: 1,000 take 0.2 to 0.5 CPU seconds for a year and 20 assets."""
_LOST = "it earned no more than its part in the market's moves explains; "


@dataclass(frozen=True)
class Verdict:
    """Whether agents show skill. Undefined values are None. Probabilities are corrected for the number of looks.

    Attributes:
        claim: `skill`, `none`, or `undecided` where the data are too few to tell.
        sentence: the claim with its reasons, for users; it begins with a small letter.
        sharpe_interval: 95 % interval of the annualised Sharpe ratio.
        deflated_sharpe: probability that the true Sharpe ratio is above the best by luck of so many looks.
        spa_pvalue: p-value of the agents' lead over the best baseline; not corrected for looks.
        matched_pvalue: probability that a matched random trader (`SpanResult.matched`) earns as much.
        excess_pvalue, alpha_pvalue: p-values of `SpanResult.excess` and `SpanResult.alpha` (above 0, one-sided).
        smallest_edge: true excess (%) for which skill would be claimed with a probability of 80 %.
        looks: number of results on these days, this one included.
        timing_pvalue: probability that the same decisions at another time (`SpanResult.timing`) earn as much.
    """

    claim: Claim
    sentence: str
    sharpe_interval: tuple[float, float] | None
    deflated_sharpe: float | None
    spa_pvalue: float | None
    matched_pvalue: float
    excess_pvalue: float | None
    alpha_pvalue: float | None
    smallest_edge: float | None
    looks: int
    timing_pvalue: float

    @property
    def statement(self) -> str:
        """The `sentence`, beginning with a capital letter."""
        return self.sentence[:1].upper() + self.sentence[1:]


def draws_for(looks: int, agents: int = 1) -> int:
    """Return how many random traders to draw, so that a result can be significant after `looks`.

    These are `DRAWS` at least, and no more than that if even `MOST_DRAWS` cannot be enough. A draw plays all `agents`,
    so of several agents, each with its own account, it is at most `MOST_DRAWS` / `agents`.
    """
    # With the fewest, not one trader may earn as much as the agents; with twice as many, one may.
    fewest, most = int(1.0 / significance_of_each(looks)), MOST_DRAWS // agents
    return DRAWS if fewest > most else max(DRAWS, min(2 * fewest, most))


def verdict_on(played: SpanResult, config: Config, *, looks: int = 1, looked_at: Sequence[float] = ()) -> Verdict:
    """Return the verdict on agents that played a span of days; the arguments are those of `judge_of`."""
    return judge_of(played, config)(looks, looked_at)


def judge_of(played: SpanResult, config: Config) -> Callable[[int, Sequence[float]], Verdict]:
    """Return a function that gives the verdict on agents that played a span of days, for a number of looks.

    What may take long or fail is computed at once, before a look has to be counted. The agents are judged as one; the
    seed of `config` seeds the bootstraps. The function's arguments are the number of results on these days among which
    this one was chosen, itself included, and the daily Sharpe ratios of those results for which they are known.

    Skill is claimed if, after the correction for looks, all of these hold: the agent's return lies in the upper 5 % of
    the matched random traders'; its excess is positive at 5 % (one-sided, by the error and the degrees of freedom of
    `Excess.student`, as in the excess's interval); and so is the excess's alpha, since a preference for risky assets
    earns more than a rising market. Otherwise no skill is shown where the agent is the basket of all
    assets (`BASKET`), or where it gained no more than the market or the median of the matched random traders; the rest
    is undecided. In any case no skill is shown where the account's daily returns, with all costs paid, have no positive
    alpha on the first of `SpanResult.baskets`. With fewer than `FEWEST_DAYS` days nothing can be told.
    """
    returns = played.curve.returns
    daily = returns - daily_rates(played.risk_free, played.curve.dates)
    baselines = {name: baseline.returns for name, baseline in played.baselines.items()}
    baskets = [baselines[name] for name in played.baskets]
    own_alpha = played.metrics.alpha
    lost = own_alpha is None or own_alpha <= 0.0
    basket = _basket(played, _correlation(returns, baskets))
    interval, year = sharpe_interval(daily, config.seed), played.periods_per_year**0.5
    spa_pvalue = superiority(returns, baselines, config.seed)

    def verdict(looks: int, looked_at: Sequence[float]) -> Verdict:
        looks = max(looks, 1)
        matched, timing = (
            corrected((1.0 + (draws >= played.metrics.total_return).sum()) / (1.0 + len(draws)), looks)
            for draws in (played.matched.total_returns, played.timing.total_returns)
        )
        excess_pvalue, smallest = _excess(played.excess, looks)
        alpha_pvalue, _ = _excess(played.alpha, looks)
        pvalues = [matched, *(1.0 if pvalue is None else pvalue for pvalue in (excess_pvalue, alpha_pvalue))]
        claim: Claim = "none" if lost else _claim(played, max(pvalues), basket)
        if len(daily) < FEWEST_DAYS:
            claim = "undecided"
        missing = _missing(pvalues, played, smallest, looks)
        return Verdict(
            claim=claim,
            sentence=_sentence(played, claim, matched, basket or (_LOST if lost else ""), missing, looks),
            sharpe_interval=None if interval is None else (interval[0] * year, interval[1] * year),
            deflated_sharpe=deflated_sharpe(daily, looks, looked_at),
            spa_pvalue=spa_pvalue,
            matched_pvalue=matched,
            excess_pvalue=excess_pvalue,
            alpha_pvalue=alpha_pvalue,
            smallest_edge=smallest,
            looks=looks,
            timing_pvalue=timing,
        )

    return verdict


def _excess(excess: Excess | None, looks: int) -> tuple[float | None, float | None]:
    """Return an excess's one-sided p-value, corrected, and the true excess that is claimed with probability `POWER`."""
    if excess is None or excess.standard_error == 0.0:
        return None, None
    error, freedom = excess.student
    smallest = detectable_ratio(freedom, looks) * error
    return corrected(float(student_t.sf(excess.mean / error, freedom)), looks), smallest


def _claim(played: SpanResult, pvalue: float, basket: str) -> Claim:
    """Return the claim; `pvalue`: the greatest p-value of all conditions; `basket`: as `_basket` returns it."""
    if pvalue <= SIGNIFICANCE:
        return "skill"
    if basket or played.excess is None or played.excess.mean <= 0.0:
        return "none"
    return "none" if _share_below(played) <= 0.5 else "undecided"


def _share_below(played: SpanResult) -> float:
    share = played.matched.quantile_of(played.metrics.total_return)
    return 0.5 if share is None else share


def _correlation(returns: Values, baskets: Sequence[Values]) -> float | None:
    known = [basket for basket in baskets if basket.std() > 0.0 and returns.std() > 0.0]
    return max((float(np.corrcoef(returns, basket)[0, 1]) for basket in known), default=None)


def _basket(played: SpanResult, correlation: float | None) -> str:
    """Return a clause which says that the agent is the basket of all assets; empty if it is not."""
    if played.active_share is not None:
        held = 1.0 - played.active_share
        weights = f"{percent(held, 0)} of its weights are those of equal weight, the basket of all assets; "
        return weights if held >= BASKET else ""
    if correlation is None or correlation < BASKET:
        return ""
    basket = "the asset itself" if played.by_timing else "the basket of all assets"
    return f"it is {basket}, whose daily returns correlate {ratio(correlation)} with its own; "


def _missing(pvalues: Sequence[float], played: SpanResult, smallest: float | None, looks: int) -> str:
    *others, alpha = pvalues
    if max(others) <= SIGNIFICANCE < alpha:
        return f"by luck alone, the excess that the market's moves do not explain has a probability of {percent(alpha)}"
    draws = len(played.matched.total_returns)
    if corrected(1.0 / (1.0 + draws), looks) > SIGNIFICANCE:
        kind = "shifts in time" if played.by_timing else "random traders"
        days = "more days, or days" if played.by_timing else "days"
        return f"after so many looks {draws:,} {kind} are too few to show any edge, so play {days} with fewer looks"
    if smallest is None or played.excess is None:
        return "no edge could have been shown"
    return f"the smallest edge that could have been shown is {change(smallest)} % a {played.excess.per}"


def _sentence(played: SpanResult, claim: Claim, matched: float, reason: str, missing: str, looks: int) -> str:
    excess, after = played.excess, f"after {count(looks, 'look')} at these days"
    basket = float(np.prod(1.0 + played.baselines[played.benchmark].returns) - 1.0)
    earned = (
        f"it earned {change(100.0 * played.metrics.total_return, 1)} %, {played.benchmark.replace('_', ' ')} "
        f"{change(100.0 * basket, 1)} %"
    )
    if len(played.curve.dates) < FEWEST_DAYS:
        found = f"{played.curve.length}, and it needs {FEWEST_DAYS} or more"
        return f"too few days for a verdict: {found}; {earned} ({after})."
    if excess is None:
        return f"no skill shown: it made fewer than two trades ({after})."
    against = "the market"
    if played.by_timing:
        against = "as much of the asset on all days" if excess.per == "year" else "the asset bought on any day"
    draws = f"{len(played.matched.total_returns):,} {played.matched.description}"
    share = percent(_share_below(played), 0)
    compared = f"{earned}; beyond {against} it gained {excess}, and {share} of {draws} earned less"
    if claim == "skill":
        return f"skill is likely: {compared}; by luck alone that has a probability of {percent(matched)} {after}."
    if claim == "undecided":
        return f"too little data to tell: {missing}; {compared} ({after})."
    return f"no skill shown: {reason}{compared} ({after}; {missing})."
