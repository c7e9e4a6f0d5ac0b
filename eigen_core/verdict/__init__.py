"""Skill or luck: statistics of returns, the count of looks at a span of days, and the claim that follows."""

from eigen_core.verdict.claim import Claim, Evidence, Verdict, judge

__all__ = ["Claim", "Evidence", "Verdict", "judge"]
