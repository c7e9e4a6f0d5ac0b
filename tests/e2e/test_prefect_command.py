"""Trainings that are asked for with Prefect's own command."""

import re
import time
from collections.abc import Callable

import pytest
from operated import Operated

from eigen_core.housekeeping import verify_run

pytestmark = pytest.mark.thorough


def test_a_preset_and_a_number_of_generations_are_enough(operated: Operated, measured: Callable[[str], None]) -> None:
    asked = time.monotonic()
    number = operated.run_deployment("-p", 'config={"preset": "quickstart", "generations": 2}')
    operated.wait(120, operated.is_resuming, "the schedule to be on while it trains", every=0.5)
    assert operated.wait_for_end(number, 300) == "Completed"
    measured(f"prefect deployment run of 2 generations of quickstart: finished after {time.monotonic() - asked:.1f} s")
    tags = operated.flow_run(number)["tags"]
    (run,) = (tag.removeprefix("run:") for tag in tags if tag.startswith("run:"))
    assert run.startswith("quickstart-")
    status = operated.status(run)
    assert (status.state, status.generation, status.config.preset) == ("finished", 2, "quickstart")
    assert verify_run(str(operated.store), run, deep=True).damages == ()
    assert not operated.is_resuming()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('{"preset": "huge"}', "'config.preset'.* 'huge' is not one of"),
        ('{"learner": {"batchsize": 3}}', r"'config.learner'.* \('batchsize' was unexpected\)"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_begins(operated: Operated, config: str, sentence: str) -> None:
    before = len(operated.asked_for())
    refused = operated.try_prefect("deployment", "run", "train/gpu", "-p", f"config={config}")
    assert refused.returncode != 0
    said = " ".join(f"{refused.stdout} {refused.stderr}".split())
    assert re.search(sentence, said)
    assert "Traceback" not in said
    assert len(operated.asked_for()) == before


def test_values_that_do_not_fit_together_end_the_flow_run_with_the_sentence_of_our_validation(
    operated: Operated,
) -> None:
    number = operated.run_deployment("-p", 'config={"replay": {"capacity": 100, "minimum": 200}}')
    assert operated.wait_for_end(number) == "Failed"
    message = operated.flow_run(number)["state"]["message"]
    assert "replay.capacity 100 is below replay.minimum 200: learning would never start" in message
