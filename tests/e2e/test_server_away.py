"""A training does not wait for a server that is away, and does not end because of that."""

import shutil
import time
from collections.abc import Callable

import pytest
from operated import Operated

from flows.server.deploying import SILENT_SECONDS

# That a training goes on without its server is seen in `test_side_by_side.py` too.
pytestmark = pytest.mark.slow

_MANY_GENERATIONS = 1_000
# A minute's waiting of Prefect's client, for each of two things in a generation, would leave fewer.
_GENERATIONS_AWAY = 2
_SECONDS_AWAY = 110.0


@pytest.mark.parametrize(
    ("away", "watched"),
    [
        pytest.param(15.0, 0.0, id="quarter minute"),
        pytest.param(120.0, SILENT_SECONDS + 60.0, id="two minutes", marks=pytest.mark.slow),
    ],
)
def test_a_training_goes_on_without_its_server(
    operated: Operated, settings: list[str], measured: Callable[[str], None], away: float, watched: float
) -> None:
    number = operated.submit("away", settings, _MANY_GENERATIONS)
    operated.wait_for_generation("away", 1)
    first, began = operated.generation("away"), time.monotonic()
    time.sleep(away)
    before = (operated.generation("away") - first) / (time.monotonic() - began)
    engine = operated.engine()
    operated.process("server").kill()
    first, killed = operated.generation("away"), time.monotonic()
    operated.wait_for_generation("away", first + _GENERATIONS_AWAY, _SECONDS_AWAY)
    time.sleep(max(killed + away - time.monotonic(), 0.0))
    done, took = operated.generation("away") - first, time.monotonic() - killed
    operated.up()
    measured(f"server away for {took:.0f} s: {before / (done / took):.2f} times as long for a generation as before")
    time.sleep(watched)
    assert operated.engine() == engine
    # A server that comes back to much work may miss heartbeats all the same: the training sets that right.
    operated.wait(120, lambda: operated.states(number)[-1] == "Running", "the state of a flow run that trains")
    measured(f"server away for {took:.0f} s: taken for crashed {operated.states(number).count('Crashed')} times")
    operated.cancel(number)
    assert operated.wait_for_end(number) == "Cancelled"
    operated.wait(120, lambda: not engine.is_running(), "the end of a process that was cancelled")
    operated.forget(number)
    shutil.rmtree(operated.store / "away")
