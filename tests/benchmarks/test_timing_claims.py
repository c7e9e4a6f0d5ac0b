"""Traders of one asset: without skill few are claimed to have it, with much of it many are."""

import pytest

from benchmarks.timing_claims import run


@pytest.mark.thorough
def test_luck_in_timing_is_rarely_claimed_and_skill_is_found() -> None:
    section = run(markets=1)
    claims: dict[str, tuple[int, int]] = {}
    for name, *found in section.rows:
        counts = [tuple(map(int, cell.split(" of "))) for cell in found]
        claims[name] = (sum(claimed for claimed, _ in counts), sum(judged for _, judged in counts))
    without = [counts for name, counts in claims.items() if not name.startswith("correlation")]
    claimed, judged = (sum(values) for values in zip(*without, strict=True))
    assert judged > 200
    # With a probability of 5 % each, more than 9 % of so many have one of 1 %.
    assert claimed <= 0.09 * judged
    strongest = claims["correlation 0.3"]
    assert strongest[0] >= 0.2 * strongest[1]
