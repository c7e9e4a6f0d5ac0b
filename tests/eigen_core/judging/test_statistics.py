"""Statistics of returns, and the rule of the claim, which nothing but skill raises."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from known import known
from scipy.stats import norm
from trading_cases import curve_of

from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.statistics import (
    Values,
    corrected,
    deflated_sharpe,
    interquartile_mean,
    sharpe_interval,
    sharpe_ratio,
    superiority,
)
from eigen_core.judging.verdicts import MOST_DRAWS, Verdict, draws_for, verdict_on
from eigen_core.trading.baselines import MatchedTraders


def returns_of(seed: int, days: int = 252, mean: float = 0.0005, spread: float = 0.01) -> Values:
    return np.random.default_rng(seed).normal(mean, spread, days)


@pytest.mark.thorough
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.judging.statistics._DRAWS", 300)
    held = 0
    for seed in range(120):
        low, high = sharpe_interval(returns_of(seed), seed) or (1.0, 0.0)
        held += low <= 0.05 <= high
    # Of 120 intervals of 95 %, fewer than 105 or all of them are rarer than 1 in 1,000.
    assert 105 <= held <= 120


def test_equal_returns_give_equal_intervals() -> None:
    assert sharpe_interval(returns_of(1), 4) == sharpe_interval(returns_of(1), 4)
    assert sharpe_interval(np.full(100, 0.001), 4) is None
    assert sharpe_ratio(np.zeros(3)) is None


def test_more_looks_deflate_the_ratio() -> None:
    excess = returns_of(3, mean=0.001)
    probabilities = [known(deflated_sharpe(excess, looks)) for looks in (1, 2, 10, 400)]
    assert probabilities == sorted(probabilities, reverse=True)
    assert deflated_sharpe(excess[:9], 1) is superiority(excess[:9], {"cash": np.zeros(9)}, 0) is None
    # With one look it is the probability that a normal estimate is above 0.
    assert probabilities[0] == pytest.approx(norm.cdf(known(sharpe_ratio(excess)) * np.sqrt(251)), abs=0.02)
    # Known ratios that are apart deflate more than those that are alike.
    alike, apart = (known(deflated_sharpe(excess, 10, ratios)) for ratios in ([0.05, 0.051], [-0.2, 0.2]))
    assert apart < alike == probabilities[2]


def test_superiority_is_that_over_the_best_baseline() -> None:
    weak, strong = returns_of(1, mean=-0.001), returns_of(2, mean=0.003)
    ours = returns_of(3, mean=0.003)
    against_weak, against_both = superiority(ours, {"weak": weak}, 0), superiority(ours, {"a": weak, "b": strong}, 0)
    assert known(against_weak) < 0.05 < known(against_both)
    assert superiority(ours, {"itself": ours}, 0) is None


def test_the_middle_half_of_seeds_ignores_one_that_failed() -> None:
    mean, low, high = interquartile_mean(np.array([1.0, 1.1, 0.9, 1.0, -50.0, 1.05, 0.95, 1.0]), 0)
    assert mean == pytest.approx(0.9875, abs=0.02)
    assert low <= mean <= high


@pytest.mark.parametrize(("pvalue", "looks", "expected"), [(0.05, 1, 0.05), (0.05, 2, 0.0975), (0.001, 400, 0.3298)])
def test_looks_correct_a_pvalue(pvalue: float, looks: int, expected: float) -> None:
    assert corrected(pvalue, looks) == pytest.approx(expected, abs=1e-4)


_RANDOM = np.random.default_rng(0)
_BASKET = _RANDOM.normal(0.0004, 0.01, 251)
_OTHER = _RANDOM.normal(0.0004, 0.01, 251)
_DRAWS = np.linspace(-0.2, 0.2, 1_000)
_DATES = pd.bdate_range("2021-01-04", periods=251)
_NO_DRAWS = np.zeros(0)


def excess(mean: float, standard_error: float = 0.2, trades: int = 120, **given: Any) -> Excess:
    return Excess(mean=mean, standard_error=standard_error, trades=trades, **given)


def judged(
    returns: Values = _OTHER + 0.004,
    *,
    earned: float = 0.3,
    draws: Values = _DRAWS,
    shifts: Values = _NO_DRAWS,
    basket: Values = _BASKET,
    looks: int = 1,
    **changes: Any,
) -> Verdict:
    """The verdict on an agent whose trades earn clearly more than the market, on days of its own.

    `earned` is its total return on the scale of `draws` and `shifts`, the total returns of matched traders.
    """
    curve = curve_of(pd.Series(returns, _DATES))
    above = curve.equity[-1] / curve.capital - 1.0 - earned
    values: dict[str, Any] = {
        "curve": curve,
        "trades": pd.DataFrame(),
        "interest": 0.0,
        "one_portfolio": False,
        "baselines": {"equal_weight": curve_of(pd.Series(basket, _DATES)), "cash": curve_of(pd.Series(0.0, _DATES))},
        "baskets": ("equal_weight",),
        "matched": MatchedTraders(draws + above, "random traders"),
        "timing": MatchedTraders(shifts + above, "shifts"),
        "excess": excess(1.0),
        "alpha": excess(0.9),
        "holding_bars": 20,
        "periods_per_year": 252,
        "risk_free": 0.0,
    }
    return verdict_on(SpanResult(**(values | changes)), Config(), looks=looks)


_RISING = _BASKET + 0.002
_COSTLY = {"returns": 0.75 * _RISING + 0.6 * _OTHER - 0.002, "basket": _RISING}
_A_YEAR = excess(1.0, 2.0, 251, per="year")
_PORTFOLIO = {"returns": _BASKET * 0.99 + 0.0001 * _OTHER, "earned": 0.1, "excess": _A_YEAR, "alpha": _A_YEAR}
_SHIFTS = np.linspace(-0.2, 0.2, 210)
_TIMED = {"by_timing": True, "draws": _SHIFTS, "shifts": _SHIFTS}


@pytest.mark.parametrize(
    ("given", "claim", "reason"),
    [
        ({}, "skill", "skill is likely: "),
        ({"earned": 0.15}, "undecided", ""),
        ({"earned": -0.1}, "none", ""),
        ({"excess": excess(0.3)}, "undecided", ""),
        ({"excess": excess(-0.1)}, "none", ""),
        ({"alpha": None}, "undecided", ""),
        ({"looks": 20}, "skill", ""),
        (
            {"looks": 60},
            "undecided",
            "1,000 random traders are too few to show any edge, so play days with fewer looks",
        ),
        ({"looks": 60, "draws": np.linspace(-0.2, 0.2, draws_for(60))}, "skill", ""),
        (_COSTLY, "none", "it earned no more than its part in the market's moves explains"),
        ({"returns": _BASKET * 0.9, "earned": 0.02, "excess": excess(0.1)}, "none", "it is the basket of all assets"),
        # A portfolio is the basket where its weights are equal.
        ({**_PORTFOLIO, "active_share": 0.3}, "undecided", "+1.00 % a year"),
        ({**_PORTFOLIO, "active_share": 0.03}, "none", "97 % of its weights are those of equal weight"),
        (_TIMED, "skill", ""),
        ({**_TIMED, "looks": 20}, "undecided", ""),
        ({**_TIMED, "draws": _SHIFTS[:10]}, "undecided", "10 shifts in time are too few to show any edge"),
        # Of several assets the timing is shown and decides nothing.
        ({"shifts": np.full(100, 0.0)}, "skill", ""),
        ({"shifts": np.full(100, 1.0)}, "skill", ""),
    ],
)
def test_skill_is_claimed_only_where_all_conditions_hold(given: dict[str, Any], claim: str, reason: str) -> None:
    verdict = judged(**given)
    assert verdict.claim == claim
    assert reason in verdict.sentence


def test_a_preference_for_risky_assets_in_a_rising_market_is_no_skill() -> None:
    verdict = judged(alpha=excess(0.2))
    assert 0.05 < known(verdict.alpha_pvalue) < 0.5
    assert verdict.claim == "undecided"
    assert f"{100.0 * known(verdict.alpha_pvalue):.1f} %" in verdict.sentence.partition(";")[0]


def test_without_trades_there_is_no_skill() -> None:
    verdict = judged(np.zeros(251), excess=None, alpha=None, earned=0.0, draws=_NO_DRAWS)
    assert verdict.claim == "none"
    assert (verdict.sharpe_interval, verdict.deflated_sharpe, verdict.smallest_edge) == (None, None, None)


def test_the_smallest_edge_and_the_probabilities_are_those_of_the_results() -> None:
    assert judged(looks=400).matched_pvalue > judged().matched_pvalue
    verdict = judged(earned=0.1, excess=excess(0.2, 0.4, 30))
    assert verdict.claim == "undecided"
    assert f"that could have been shown is {known(verdict.smallest_edge):+.2f} % a trade" in verdict.sentence
    assert judged(excess=_A_YEAR, holding_bars=1).smallest_edge == pytest.approx(2.0 * (1.645 + 0.842), abs=0.01)
    by_timing = judged(by_timing=True, draws=_SHIFTS, shifts=_SHIFTS)
    assert by_timing.timing_pvalue == by_timing.matched_pvalue < 0.05
    lucky, unlucky = (judged(shifts=np.full(100, earned)).timing_pvalue for earned in (0.0, 1.0))
    assert lucky < 0.05 < unlucky


@pytest.mark.parametrize("freedom", [1.0, 4.0, 11.5, 50.0, None])
def test_the_pvalue_and_the_interval_follow_one_rule(freedom: float | None) -> None:
    width = excess(0.0, freedom=freedom).interval[1]
    for mean in (0.999 * width, 1.001 * width):
        found = excess(mean, freedom=freedom)
        # The interval has 2.5 % on each side.
        verdict = judged(excess=found, alpha=found)
        assert (known(verdict.excess_pvalue) < 0.025) == (found.interval[0] > 0.0) == (mean > width)
        assert verdict.excess_pvalue == verdict.alpha_pvalue


@pytest.mark.parametrize(("looks", "shown"), [(1, True), (51, True), (52, True), (1_000, True), (2_000, False)])
def test_as_many_random_traders_are_drawn_as_the_looks_need(looks: int, shown: bool) -> None:
    draws = draws_for(looks)
    assert 1_000 <= draws <= MOST_DRAWS
    assert (corrected(1.0 / (1.0 + draws), looks) <= 0.05) == shown
    # A draw plays all agents: 16 of them are drawn no more often than one would be, up to the usual number.
    assert draws_for(looks, 16) <= max(1_000, MOST_DRAWS // 16)


def test_the_smallest_edge_is_claimed_four_times_in_five(monkeypatch: pytest.MonkeyPatch) -> None:
    # These take long, and do not depend on the excess.
    for name in ("sharpe_interval", "superiority"):
        monkeypatch.setattr(f"eigen_core.judging.verdicts.{name}", lambda *_: None)
    smallest = known(judged(excess=excess(0.5, 0.4, 90)).smallest_edge)
    drawn = np.random.default_rng(1).normal(smallest, 0.4, 60)
    verdicts = [judged(excess=excess(float(mean), 0.4, 90)) for mean in drawn]
    assert 0.65 <= np.mean([(one.excess_pvalue or 1.0) <= 0.05 for one in verdicts]) <= 0.95
