"""Combinatorial purged cross-validation: groups of consecutive bars, the tests of each split, and paths.

Lopez de Prado 2018, "Advances in Financial Machine Learning", section 12.4. With
one test group in each split it is k-fold cross-validation, which has one path.
"""

from itertools import combinations
from math import comb

from eigen_core.common.errors import InputError

MOST_SPLITS = 1_000
"""Most splits of a cross-validation: each is a training of its own."""


def group_bounds(bars: int, groups: int) -> tuple[range, ...]:
    """Return the bars of each group, in their order; the sizes of groups differ by one bar at most.

    Raises `InputError` if there are fewer bars than groups.
    """
    if bars < groups:
        raise InputError(f"{bars:,} bars cannot be divided into {groups:,} groups: give more data, or fewer groups.")
    stops = [bars * group // groups for group in range(groups + 1)]
    return tuple(map(range, stops[:-1], stops[1:]))


def splits_of(groups: int, tested: int) -> tuple[tuple[int, ...], ...]:
    """Return the test groups of each split, as numbers from 0: every choice of `tested` of the `groups`.

    Raises `InputError` if a split would have no group to train or none to test, or for more than `MOST_SPLITS`.
    """
    if not 0 < tested < groups:
        raise InputError(f"{tested} test groups of {groups} groups: test 1 or more, and fewer than there are.")
    if comb(groups, tested) > MOST_SPLITS:
        raise InputError(
            f"{tested} test groups of {groups} groups make {comb(groups, tested):,} splits, and at most "
            f"{MOST_SPLITS:,} are trained: give fewer groups, or fewer test groups."
        )
    return tuple(combinations(range(groups), tested))


def paths_of(groups: int, tested: int) -> tuple[tuple[int, ...], ...]:
    """Return for each path, and in it for each group, the split that plays the group.

    A path plays every group once; each split plays each of its test groups in one path. There are
    C(`groups` - 1, `tested` - 1) paths. Raises `InputError` as `splits_of` does.
    """
    splits = splits_of(groups, tested)
    playing = ([split for split, chosen in enumerate(splits) if group in chosen] for group in range(groups))
    return tuple(zip(*playing, strict=True))
