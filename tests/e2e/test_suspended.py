"""A training that is paused in its page makes room, and goes on when it is resumed there."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil
from operated import GENERATIONS, Operated, Undisturbed, outcome


def suspend(operated: Operated, number: str) -> None:
    """Suspend a flow run as its page does."""
    end = datetime.now(UTC) + timedelta(minutes=5)
    state = {
        "type": "PAUSED",
        "name": "Suspended",
        "state_details": {"pause_timeout": end.isoformat(), "pause_reschedule": True},
    }
    operated.ask(f"flow_runs/{number}/set_state", state=state, force=True)


def test_a_suspended_training_has_no_process_until_it_is_resumed(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    run = "suspended"
    number = operated.launch(run, ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation(run, 1)
    engine = operated.engine()
    suspend(operated, number)
    told = time.monotonic()
    psutil.wait_procs([engine], timeout=60)
    measured(f"suspended, and the process has ended: {time.monotonic() - told:.1f} s")
    assert not engine.is_running()
    assert operated.flow_run(number)["state"]["name"] == "Suspended"
    generation = operated.generation(run)
    assert 1 <= generation < GENERATIONS
    shown = operated.eigen("status").stdout
    assert "Suspended for " in shown
    assert f"its last checkpoint is generation {generation} of {GENERATIONS}" in shown
    assert operated.is_resuming()
    operated.ask(f"flow_runs/{number}/resume")
    assert operated.wait_for_end(number) == "Completed"
    assert [found["id"] for found in operated.flow_runs(run)] == [number]
    assert outcome(operated.status(run)) == undisturbed.outcome(GENERATIONS)
