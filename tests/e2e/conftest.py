"""One server and worker for the tests of this folder, and the run that nothing disturbs."""

from collections.abc import Iterator

import pytest
from flow_cases import small_settings
from operated import GENERATIONS, Operated, Undisturbed


@pytest.fixture(scope="session")
def settings() -> list[str]:
    """Options of a run whose generations take a second or two: long enough to be hit."""
    return small_settings(
        learner={"gradient_steps": 60}, evaluation={"slices": 6}, reporting={"plot_every": GENERATIONS // 2}
    )


@pytest.fixture(scope="package")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with Operated(tmp_path_factory.mktemp("operated")) as found:
        found.up()
        yield found


@pytest.fixture(autouse=True)
def _up_again(request: pytest.FixtureRequest) -> None:
    """What a test that failed has left stopped would let those after it fail."""
    if "operated" in request.fixturenames:
        request.getfixturevalue("operated").stay_up()


@pytest.fixture(scope="package")
def undisturbed(operated: Operated, settings: list[str]) -> Undisturbed:
    found = Undisturbed(operated, settings)
    # Now, while nothing else computes.
    found.outcome(GENERATIONS)
    return found
