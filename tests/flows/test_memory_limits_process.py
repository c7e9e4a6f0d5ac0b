"""A training under a limit below its need ends by the guard, and what it had stays; `make limits` has more.

A real process of `eigen train`, with a phase that takes what no plan knows.
"""

import pytest
import torch

from benchmarks.limits import BEGUN, RUN, Limiter, Need, with_appetite
from eigen_core.common.randomness import keyed_generator
from flows.server.flows import train_flow

pytestmark = pytest.mark.cpu

# Resident and address peaks of the small training without Prefect's server, well below what was measured.
LEAST_RESIDENT = 450_000_000
# The libraries of a torch for GPUs take 2.6 GB of addresses more.
LEAST_ADDRESSES = 1_200_000_000 if torch.version.cuda is None else 3_800_000_000


@pytest.fixture(scope="module")
def limiter(tmp_path_factory: pytest.TempPathFactory, prefect_api_url: str) -> Limiter:
    """Runs trainings under limits; the run is begun, and trained to its end in store `undisturbed`."""
    limiter = Limiter(tmp_path_factory.mktemp("limits"), {"PREFECT_API_URL": prefect_api_url})
    config = limiter.config("begun")
    assert train_flow(config.model_copy(update={"generations": BEGUN}), RUN, return_state=True).is_completed()
    limiter.copy("undisturbed")
    assert train_flow(limiter.config("undisturbed"), RUN, return_state=True).is_completed()
    return limiter


@pytest.fixture(scope="module")
def need(limiter: Limiter) -> Need:
    return limiter.plan((LEAST_RESIDENT, LEAST_RESIDENT), LEAST_ADDRESSES)


@pytest.mark.thorough
def test_a_phase_that_takes_what_no_plan_knows_is_ended_by_the_guard(limiter: Limiter, need: Need) -> None:
    case = with_appetite("train", "RLIMIT_AS", need, keyed_generator(3, 0, "test", "train", "limits"))
    outcome = limiter.run(case, "train", need)
    limiter.compare(outcome, "train", limiter.facts("undisturbed"))
    assert (outcome.by, outcome.phase, outcome.faults) == ("guard", "train", [])
