"""Who may read what Eigen writes, and who decides it."""

import os
from collections.abc import Iterator

import pytest

from eigen_core.common.errors import InputError
from flows.server.environment import set_umask


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("given", "umask"), [({}, 0o077), ({"EIGEN_UMASK": ""}, 0o077), ({"EIGEN_UMASK": "027"}, 0o027)]
)
def test_only_the_owner_reads_unless_the_user_allows_more(given: dict[str, str], umask: int) -> None:
    set_umask(given)
    assert os.umask(0) == umask


@pytest.mark.parametrize("given", ["8", "999", "rwx", "0o27", "07777", "-27"])
def test_what_is_no_umask_is_refused_with_a_sentence(given: str) -> None:
    with pytest.raises(InputError, match=r"EIGEN_UMASK is .* three octal digits"):
        set_umask({"EIGEN_UMASK": given})
    assert os.umask(0) == 0o022
