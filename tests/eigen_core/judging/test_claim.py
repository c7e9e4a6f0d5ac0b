"""The claim follows its stated rule: what raises the market, the trades or the looks raises no claim."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigen_core.common.records import Excess
from eigen_core.judging.verdicts import Evidence, judge

_RANDOM = np.random.default_rng(0)
_BASKET = _RANDOM.normal(0.0004, 0.01, 251)
_OTHER = _RANDOM.normal(0.0004, 0.01, 251)


def evidence_of(**changes: Any) -> Evidence:
    """An agent whose trades earn clearly more than the market, on days of its own."""
    skilled = Evidence(
        returns=_OTHER + 0.004,
        baselines={"equal_weight": _BASKET, "cash": np.zeros(251)},
        baskets=("equal_weight",),
        total_return=0.3,
        matched_returns=np.linspace(-0.2, 0.2, 1_000),
        excess=Excess(mean=1.0, standard_error=0.2, trades=120),
        alpha=Excess(mean=0.9, standard_error=0.2, trades=120),
        holding_days=20,
        periods_per_year=252,
    )
    return replace(skilled, **changes)


def test_skill_needs_both_conditions() -> None:
    verdict = judge(evidence_of())
    assert verdict.claim == "skill"
    assert verdict.sentence.startswith("skill is likely: ")
    assert "100 % of 1,000 random traders" in verdict.sentence
    assert "after 1 look" in verdict.sentence
    assert judge(evidence_of(total_return=0.15)).claim == "undecided"
    assert judge(evidence_of(excess=Excess(mean=0.3, standard_error=0.2, trades=120))).claim == "undecided"


def test_a_preference_for_risky_assets_in_a_rising_market_is_no_skill() -> None:
    by_luck = Excess(mean=0.2, standard_error=0.2, trades=120)
    verdict = judge(evidence_of(alpha=by_luck))
    assert verdict.alpha_pvalue is not None
    assert 0.05 < verdict.alpha_pvalue < 0.5
    assert verdict.claim == "undecided"
    assert verdict.sentence.startswith("too little data to tell: by luck alone, the excess that the market's")
    assert f"{100.0 * verdict.alpha_pvalue:.1f} %" in verdict.sentence.partition(";")[0]
    assert "smallest edge" not in verdict.sentence
    assert judge(evidence_of(alpha=None)).claim == "undecided"


def test_an_account_whose_costs_eat_what_it_gained_shows_no_skill() -> None:
    rising = _BASKET + 0.002
    costly = judge(evidence_of(returns=0.75 * rising + 0.6 * _OTHER - 0.002, baselines={"equal_weight": rising}))
    assert costly.claim == "none"
    assert "it earned no more than its part in the market's moves explains" in costly.sentence


def test_without_trades_there_is_no_skill() -> None:
    verdict = judge(
        evidence_of(excess=None, alpha=None, returns=np.zeros(251), total_return=0.0, matched_returns=np.zeros(0))
    )
    assert verdict.claim == "none"
    assert (verdict.sharpe_interval, verdict.deflated_sharpe, verdict.smallest_edge) == (None, None, None)


def test_looks_take_a_claim_back() -> None:
    assert judge(evidence_of(looks=20)).claim == "skill"
    many = judge(evidence_of(looks=400))
    assert many.claim == "undecided"
    assert "after 400 looks" in many.sentence
    assert "1,000 random traders are too few to show any edge" in judge(evidence_of(looks=60)).sentence
    assert many.matched_pvalue > judge(evidence_of()).matched_pvalue


def test_the_basket_is_named() -> None:
    verdict = judge(
        evidence_of(returns=_BASKET * 0.9, total_return=0.02, excess=Excess(mean=0.1, standard_error=0.2, trades=240))
    )
    assert verdict.claim == "none"
    assert "no skill shown: it is the basket of all assets, whose daily returns correlate 1.00" in verdict.sentence
    assert verdict.basket_correlation == pytest.approx(1.0)


def test_nothing_gained_is_no_skill_and_too_little_is_undecided() -> None:
    assert judge(evidence_of(excess=Excess(mean=-0.1, standard_error=0.2, trades=120))).claim == "none"
    assert judge(evidence_of(total_return=-0.1)).claim == "none"
    verdict = judge(evidence_of(total_return=0.1, excess=Excess(mean=0.2, standard_error=0.4, trades=30)))
    assert verdict.claim == "undecided"
    assert verdict.smallest_edge is not None
    assert f"the smallest edge that could have been shown is {verdict.smallest_edge:+.2f} % a trade" in (
        verdict.sentence
    )


@pytest.mark.thorough
def test_the_smallest_edge_is_claimed_four_times_in_five() -> None:
    verdict = judge(evidence_of(excess=Excess(mean=0.5, standard_error=0.4, trades=90)))
    assert verdict.smallest_edge is not None
    drawn = np.random.default_rng(1).normal(verdict.smallest_edge, 0.4, 400)
    pvalues = [
        judge(evidence_of(excess=Excess(mean=float(mean), standard_error=0.4, trades=90))) for mean in drawn[:60]
    ]
    found = np.mean([(one.excess_pvalue or 1.0) <= 0.05 for one in pvalues])
    assert 0.65 <= found <= 0.95


def test_a_portfolio_is_judged_by_a_year_and_is_the_basket_where_it_is_equal_weight() -> None:
    like_basket = {"returns": _BASKET * 0.99 + 0.0001 * _OTHER, "holding_days": 1}
    described = {"matched_description": "random portfolios with the same weights in other assets"}
    small = Excess(mean=1.0, standard_error=2.0, trades=251, per="year")
    found = judge(
        evidence_of(**like_basket, **described, excess=small, alpha=small, total_return=0.1, active_share=0.3)
    )
    assert found.claim == "undecided"
    assert "+1.00 % a year" in found.sentence
    assert "1,000 random portfolios with the same weights in other assets earned less" in found.sentence
    assert found.smallest_edge == pytest.approx(2.0 * (1.651 + 0.842), abs=0.01)
    assert f"could have been shown is {found.smallest_edge:+.2f} % a year" in found.sentence
    equal = judge(evidence_of(**like_basket, excess=small, total_return=0.1, active_share=0.03))
    assert equal.claim == "none"
    assert "97 % of its weights are those of equal weight" in equal.sentence


def test_one_asset_is_judged_by_its_timing() -> None:
    shifts = np.linspace(-0.2, 0.2, 210)
    alone = evidence_of(by_timing=True, matched_returns=shifts, timing_returns=shifts)
    verdict = judge(alone)
    assert verdict.claim == "skill"
    assert verdict.timing_pvalue == verdict.matched_pvalue < 0.05
    assert "beyond the asset bought on any day" in verdict.sentence
    # Of several looks one has such luck.
    assert judge(replace(alone, looks=20)).claim == "undecided"
    few = judge(replace(alone, matched_returns=shifts[:10], timing_returns=shifts[:10]))
    assert few.claim == "undecided"
    assert "10 shifts in time are too few to show any edge" in few.sentence
    # Of several assets it is shown and decides nothing.
    known = [judge(evidence_of(timing_returns=np.full(100, earned))) for earned in (0.0, 1.0)]
    assert [one.claim for one in known] == ["skill", "skill"]
    assert known[0].timing_pvalue < 0.05 < known[1].timing_pvalue
