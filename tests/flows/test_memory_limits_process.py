"""Trainings under limits below their need end by the plan or the guard, and what they had stays; `make limits`.

Real processes of `eigen train`, with a phase that takes what no plan knows; some are for the night.
"""

import math
from pathlib import Path

import pytest
import torch
from memory_cases import host_bytes
from rich.console import Console

from benchmarks.kill import CONFIG
from benchmarks.limited_training import Appetite, give
from benchmarks.limits import BEGUN, RUN, Kind, Limiter, Need, below_the_need, run, with_appetite
from eigen_core.checkpoint.location import RunLocation
from eigen_core.common.randomness import keyed_generator
from eigen_core.training.journals import ABORTS, memory_reports
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


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        pytest.param("evaluate", "memory.limit_gb", marks=pytest.mark.slow),
        ("train", "RLIMIT_AS"),
        pytest.param("evolve", "memory.limit_gb", marks=pytest.mark.slow),
        pytest.param("checkpoint", "memory.limit_gb", marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_a_phase_that_takes_what_no_plan_knows_is_ended_by_the_guard(
    limiter: Limiter, need: Need, phase: str, kind: Kind
) -> None:
    case = with_appetite(phase, kind, need, keyed_generator(3, 0, "test", phase, "limits"))
    outcome = limiter.run(case, phase, need)
    limiter.compare(outcome, phase, limiter.facts("undisturbed"))
    assert (outcome.by, outcome.phase, outcome.faults) == ("guard", phase, [])


@pytest.mark.thorough
def test_a_training_that_does_not_fit_is_refused_by_its_plan(limiter: Limiter, need: Need) -> None:
    case = below_the_need("memory.limit_gb", need, keyed_generator(3, 0, "test", "plan", "limits"))
    outcome = limiter.run(case, "refused", need)
    assert (outcome.by, outcome.faults) == ("plan", [])


@pytest.mark.thorough
def test_what_the_guard_has_ended_twice_is_refused_until_the_limit_is_raised(limiter: Limiter) -> None:
    limiter.copy("twice")
    folder = limiter.store("twice") / RUN
    # The first two are ended in this process, which is larger than one of `eigen train`.
    limit_gb = math.ceil(10 * (max(host_bytes(), 700_000_000) + 400_000_000) / 0.93e9) / 10
    config = limiter.config("twice", memory={"limit_gb": limit_gb})
    undo = give(Appetite("evaluate", "steps", "array", after=False, bytes=1_600_000_000, pieces=16))
    try:
        ends = [train_flow(config, RUN, return_state=True) for _ in range(2)]
    finally:
        undo()
    assert [(end.is_failed(), end.name) for end in ends] == [(True, "MemoryGuard")] * 2
    assert [abort.generation for abort in ABORTS.read(RunLocation.of(config.checkpoint, RUN))] == [BEGUN + 1] * 2
    reports = memory_reports(folder)
    refused = limiter.train("twice", CONFIG["generations"], ["--set", f"memory.limit_gb={limit_gb}"])
    assert refused.returncode == 3, refused.stderr
    assert f"Run '{RUN}' is blocked" in refused.stderr
    assert "2 times" in refused.stderr
    assert memory_reports(folder) == reports
    raised = limiter.config("twice", memory={"limit_gb": 2 * limit_gb})
    assert train_flow(raised, RUN, return_state=True).is_completed()
    assert limiter.facts("twice") == limiter.facts("undisturbed")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_api")
def test_twenty_runs_under_limits_end_by_plan_or_guard(tmp_path: Path) -> None:
    _, outcomes = run(Limiter(tmp_path), 20, 2, Console(quiet=True))
    assert [fault for outcome in outcomes for fault in outcome.faults] == []
    assert len(outcomes) == 20
