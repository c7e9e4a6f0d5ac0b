"""Splits for cross-validation: they and their paths are skfolio's."""

from math import comb

import numpy as np
import pytest
from skfolio.model_selection import CombinatorialPurgedCV

from eigen_core.common.errors import InputError
from eigen_core.market.cross_validation import group_bounds, paths_of, splits_of


@pytest.mark.parametrize(("groups", "tested"), [(3, 2), (4, 2), (6, 2), (6, 5), (7, 3), (10, 8)])
def test_splits_and_paths_are_those_of_skfolio(groups: int, tested: int) -> None:
    others = CombinatorialPurgedCV(groups, tested)
    assert splits_of(groups, tested) == tuple(map(tuple, others.test_set_index.tolist()))
    paths = paths_of(groups, tested)
    assert np.array_equal(np.transpose(paths), others.recombined_paths)
    assert len(paths) == comb(groups - 1, tested - 1)
    ids = [
        [paths_at(paths, split, group) for group in chosen] for split, chosen in enumerate(splits_of(groups, tested))
    ]
    assert ids == others.get_path_ids().tolist()


def paths_at(paths: tuple[tuple[int, ...], ...], split: int, group: int) -> int:
    (path,) = [number for number, path in enumerate(paths) if path[group] == split]
    return path


def test_one_test_group_is_k_fold() -> None:
    assert splits_of(5, 1) == ((0,), (1,), (2,), (3,), (4,))
    assert paths_of(5, 1) == ((0, 1, 2, 3, 4),)


@pytest.mark.parametrize(("groups", "tested"), [(3, 0), (3, 3), (1, 1), (0, 0), (3, -1), (15, 5)])
def test_impossible_splits_are_refused(groups: int, tested: int) -> None:
    with pytest.raises(InputError, match=f"{tested} test groups of {groups} groups"):
        paths_of(groups, tested)


def test_too_few_bars_are_refused() -> None:
    assert group_bounds(3, 3) == (range(1), range(1, 2), range(2, 3))
    with pytest.raises(InputError, match="2 bars cannot be divided into 3 groups"):
        group_bounds(2, 3)
