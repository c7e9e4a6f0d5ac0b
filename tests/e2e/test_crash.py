"""A launched training is killed, and goes on by itself to the bits of one that nothing disturbed."""

import shutil
import time
from collections.abc import Callable

import pytest
from operated import BUSY_SECONDS, GENERATIONS, RESUMED_SECONDS, Operated, Undisturbed, outcome


def kill_engine(operated: Operated, run: str) -> tuple[int, float]:
    """Kill the process that trains a run; return the newest generation of the run and the time."""
    operated.engine().kill()
    killed = time.monotonic()
    generation = operated.generation(run)
    assert generation < GENERATIONS
    return generation, killed


@pytest.mark.thorough
def test_a_killed_training_is_resumed_by_the_trigger_and_without_it_by_the_schedule(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    launched = time.monotonic()
    number = operated.launch("killed", ["--generations", str(GENERATIONS), *settings])
    operated.wait_for_generation("killed", 1)
    measured(f"launched: first generation after {time.monotonic() - launched:.1f} s")
    generation, killed = kill_engine(operated, "killed")
    assert operated.wait_for_end(number) == "Crashed"
    crashed = time.monotonic() - killed
    operated.wait_for_generation("killed", generation + 1, RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    measured(f"flow killed -9: known as crashed after {crashed:.1f} s, next generation after {resumed:.1f} s")
    cause = operated.flow_runs("killed")[-1]["created_by"]
    assert (cause["type"], cause["display_value"]) == ("AUTOMATION", "resume-after-crash")

    assert operated.is_resuming()
    with operated.without_trigger():
        generation, _ = kill_engine(operated, "killed")
        operated.wait(60, operated.is_idle, "the end of the flow run")
        number, asked = operated.ask_by_schedule(), time.monotonic()
        operated.wait_for_generation("killed", generation + 1, RESUMED_SECONDS)
        measured(f"flow killed -9, no trigger: next generation {time.monotonic() - asked:.1f} s after its schedule")
        assert operated.finish("killed", resumes=2) == ["Crashed", "Crashed", "Completed"]
    assert operated.flow_runs("killed")[-1]["id"] == number
    assert outcome(operated.status("killed")) == undisturbed.outcome(GENERATIONS)
    assert not operated.is_resuming()


@pytest.mark.thorough
def test_a_training_killed_before_it_has_a_file_is_trained_and_one_that_was_cancelled_is_not(
    operated: Operated, settings: list[str], undisturbed: Undisturbed
) -> None:
    cancelled = operated.submit("unwanted", settings, 1_000)
    operated.wait_for_generation("unwanted", 1)
    operated.cancel(cancelled)
    assert operated.wait_for_end(cancelled) == "Cancelled"
    operated.wait(60, operated.is_idle, "the end of the flow run")
    left = operated.generation("unwanted")

    number = operated.launch("early", ["--generations", "2", *settings])
    operated.wait(BUSY_SECONDS, lambda: bool(operated.engines()), "its process", every=0.01)
    operated.engine().kill()
    assert not (operated.store / "early").exists()
    assert operated.wait_for_end(number) == "Crashed"
    operated.wait_for_generation("early", 2, RESUMED_SECONDS)
    operated.wait(BUSY_SECONDS, operated.is_idle, "the end of what was asked for")
    assert outcome(operated.status("early")) == undisturbed.outcome(2)
    assert operated.generation("unwanted") == left
    assert not operated.is_resuming()
    shutil.rmtree(operated.store / "unwanted")


@pytest.mark.thorough
def test_a_training_killed_with_its_worker_is_resumed_once_the_worker_is_back(
    operated: Operated, settings: list[str], undisturbed: Undisturbed, measured: Callable[[str], None]
) -> None:
    number = operated.submit("both", settings, GENERATIONS)
    operated.wait_for_generation("both", 2)
    worker, engine = operated.process("worker"), operated.engine()
    worker.kill()
    engine.kill()
    killed = time.monotonic()
    generation = operated.generation("both")
    assert generation < GENERATIONS
    assert operated.flow_run(number)["state"]["name"] == "Running"
    operated.up()
    assert operated.process("worker").pid != worker.pid
    back = time.monotonic() - killed
    # It did not take until its heartbeats were missed.
    assert operated.flow_run(number)["state"]["name"] == "Crashed"
    operated.wait_for_generation("both", generation + 1, RESUMED_SECONDS)
    resumed = time.monotonic() - killed
    assert operated.finish("both") == ["Crashed", "Completed"]
    assert outcome(operated.status("both")) == undisturbed.outcome(GENERATIONS)
    measured(f"flow and worker killed -9: `eigen up` is done after {back:.1f} s, next generation after {resumed:.1f} s")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_training_killed_after_its_last_checkpoint_plays_its_holdout(
    operated: Operated, settings: list[str], measured: Callable[[str], None]
) -> None:
    generations = 2
    with_holdout = [setting.replace("market.holdout_days=0", "market.holdout_days=50") for setting in settings]
    number = operated.submit("played", with_holdout, generations)
    operated.wait_for_generation("played", generations)
    # The plots are drawn between the last checkpoint and the holdout.
    operated.engine().kill()
    killed = time.monotonic()
    assert operated.wait_for_end(number) == "Crashed"
    manifests = sorted((operated.store / "played" / "manifests").glob("*.json"))
    status = operated.status("played")
    assert (status.state, status.generation, status.holdout) == ("unfinished", generations, None)
    assert operated.finish("played") == ["Crashed", "Completed"]
    measured(f"killed after the last checkpoint: the holdout is played after {time.monotonic() - killed:.1f} s")
    status = operated.status("played")
    assert status.state == "finished"
    assert status.holdout is not None
    assert sorted((operated.store / "played" / "manifests").glob("*.json")) == manifests
