"""The plan: sizes in memory and on disk as runs hold them, peaks, checks, workers, settings that fit."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from plan_cases import MB, MEASURED
from science_cases import LEARNER_OF_TASK, random_panel, small_config
from training_cases import advance

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import Config, registry
from eigen_core.generation import snapshot, start_training
from eigen_core.machine.allocation import owned_bytes
from eigen_core.machine.limits import Limit
from eigen_core.planning.memory_parts import Part, local_worker_count
from eigen_core.planning.probe import ProbeFailure, ProbeResult
from eigen_core.planning.run_plan import RunPlan, Where
from eigen_core.planning.sizes import DiskPlan, Memory, Sizes
from eigen_core.task.interface import TaskData

CONFIG = small_config(population={"size": 8}, generations=3)


def sizes_of(config: Config) -> Sizes:
    return Sizes.of(config, TaskData(random_panel(config)))


def planned(
    measured: ProbeResult | ProbeFailure | None = MEASURED,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    limits: Mapping[Where, Limit] | None = None,
    **settings: Any,
) -> RunPlan:
    config = CONFIG.model_copy(update={"device": device, **settings})
    return RunPlan.of(TaskData(), sizes_of(config), measured, limits)


def below(limit: int) -> dict[Where, Limit]:
    return {"host": Limit(limit, "here")}


def part(plan: RunPlan, name: str) -> Part:
    (found,) = [one for one in plan.parts if one.name == name]
    return found


def tensors_of_workers(plan: RunPlan) -> int:
    return sum(one.device_bytes for one in plan.parts if one.device_holder == "workers" and "train" in one.phases)


@pytest.mark.parametrize(
    ("learner", "method"),
    [
        (learner, method)
        for learner, method in product(registry.LEARNERS, registry.METHODS)
        if not (method == "cem" and learner in LEARNER_OF_TASK)  # one method with it is enough
    ],
)
def test_what_is_counted_is_what_a_run_holds(learner: str, method: str) -> None:
    config = small_config(learner={"algorithm": learner}, evolution={"method": method})
    panel = random_panel(config)
    state, sizes = start_training(config, panel), Sizes.of(config, TaskData(panel))
    own = sum(one.nbytes for one in state.population.hyperparameters.values())
    assert sizes.population_bytes == state.population.nbytes - own
    assert sizes.row_bytes == state.replay.bytes_per_transition
    assert sizes.champion_bytes == state.population.weights[0].nbytes
    assert sizes.episode_steps == state.task.episode_steps
    assert sizes.learning_agents == len(range(config.population.size)[state.method.learning(config)])
    assert sizes.data_bytes > panel.features.nbytes + 4 * panel.close.nbytes
    assert owned_bytes(state.replay) == state.replay.nbytes


def test_what_was_measured_is_in_its_phase_and_what_others_recorded_is_added() -> None:
    plan, sizes = planned(), sizes_of(CONFIG)
    assert part(plan, "learning").host_bytes == 200 * MB
    assert part(plan, "starting").host_bytes == 50 * MB
    assert part(plan, "data").host_bytes + part(plan, "population").host_bytes == 100 * MB
    recorded = sizes.rows_per_generation * sizes.row_bytes
    assert part(plan, "evaluation").host_bytes == 80 * MB + recorded // 2
    # Never less than what is recorded, while it is joined; which is counted without a measurement too.
    little = replace(MEASURED, phases={**MEASURED.phases, "evaluate": Memory()})
    assert part(planned(little), "evaluation").host_bytes == part(planned(None), "evaluation").host_bytes
    assert part(planned(None), "evaluation").host_bytes == 2 * recorded


@pytest.mark.parametrize(
    ("measured", "fits", "least_mb"),
    [
        (None, True, 450),
        (ProbeFailure("train", "it ran out of memory", out_of_memory=True), False, 1_000),
        (ProbeFailure("train", "it hung"), True, 450),
        # It had less than the run may take, since another process asked for it.
        (ProbeFailure("train", "it reached its limit", reached_bytes=600 * MB), True, 700),
        (ProbeFailure("train", "it reached its limit", reached_bytes=900 * MB), False, 1_000),
    ],
)
def test_without_a_measurement_the_plan_is_a_lower_bound_and_says_so(
    measured: ProbeFailure | None, fits: bool, least_mb: int
) -> None:
    plan = planned(measured, limits=below(1_000 * MB))
    (check,) = plan.checks
    assert (plan.fits, check.at_least) == (fits, True)
    assert least_mb * MB <= check.peak_bytes < (least_mb + 100) * MB
    assert check.phase == "train" or least_mb == 450


def test_on_a_gpu_tensors_are_on_the_device() -> None:
    plan, sizes = planned(device="cuda", limits={"device": Limit(10**8, "the driver")}), sizes_of(CONFIG)
    assert part(plan, "population").device_bytes == sizes.population_bytes
    assert part(plan, "replay").device_bytes == CONFIG.replay.capacity * sizes.row_bytes
    assert part(plan, "learning").device_bytes == 200 * MB
    assert plan.checks[0].peak_bytes == plan.peaks[plan.peak_phase("device")].device > 10**8
    assert not plan.fits
    assert tensors_of_workers(plan) == 0 < tensors_of_workers(planned(device="cuda", workers=2))


def test_the_replay_is_planned_as_far_as_the_run_fills_it() -> None:
    replay = CONFIG.replay.model_copy(update={"capacity": 5_000})
    few, more = planned(replay=replay), planned(replay=replay, generations=500)
    row, appended = sizes_of(CONFIG).row_bytes, sizes_of(CONFIG).rows_per_generation
    assert part(few, "replay").host_bytes == 3 * appended * row
    assert part(more, "replay").host_bytes == 5_000 * row
    # A resume replaces an empty buffer.
    assert few.sizes.nonresident_bytes == (2 * 5_000 - 3 * appended) * row
    assert more.sizes.nonresident_bytes == 5_000 * row


def test_a_capacity_that_no_process_could_address_is_refused() -> None:
    with pytest.raises(InputError, match=r"replay\.capacity .* lower it\. This run appends [\d,]+ transitions\."):
        planned(replay=CONFIG.replay.model_copy(update={"capacity": 1 << 40}))


def test_uploads_and_trackers_take_memory() -> None:
    away = CONFIG.checkpoint.model_copy(update={"store": "gs://bucket/runs"})
    tracked = CONFIG.reporting.model_copy(update={"trackers": ("tensorboard",)})
    usual, more = (
        {one.name for one in plan.parts} for plan in (planned(), planned(checkpoint=away, reporting=tracked))
    )
    assert more - usual == {"upload queue", "tracker tensorboard"}


def test_workers_take_memory_of_this_machine_and_the_agents_from_the_run_itself() -> None:
    alone, two, four = planned(), planned(workers=2), planned(workers=4)
    processes = [part(plan, "workers' processes").host_bytes for plan in (two, four)]
    assert processes[1] == 2 * processes[0] > 400 * MB
    # They read the replay of the run, and share its agents.
    assert "workers' replays" not in {one.name for one in two.parts}
    agents = 2 * part(alone, "population").host_bytes
    assert part(four, "workers' agents").host_bytes == part(two, "workers' agents").host_bytes == agents
    assert part(two, "evaluation").host_bytes < part(alone, "evaluation").host_bytes
    # Half of the agents learn in half of the memory, at most.
    assert part(two, "workers' learning").host_bytes <= part(alone, "learning").host_bytes


@pytest.mark.parametrize(("platform", "device"), [("darwin", "cpu"), ("linux", "cuda")])
def test_where_memory_is_not_shared_each_worker_has_a_copy_of_the_replay_and_workers_share_gpus(
    platform: str, device: Literal["cpu", "cuda"], monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(gpus: int) -> int:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        copies = part(planned(device=device, workers=4), "workers' replays")
        return copies.host_bytes + copies.device_bytes

    monkeypatch.setattr(sys, "platform", platform)
    replay = planned(device=device).sizes.replay_bytes
    assert held(1) == 4 * replay
    assert held(2) == held(3) == (2 if device == "cuda" else 4) * replay


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("found", "count"), [(1, 0), (2, 2), (6, 6), (64, 8)])
def test_auto_takes_all_cores_or_gpus_and_at_most_one_an_agent(
    device: Literal["cpu", "cuda"], found: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen_core.planning.memory_parts.usable_cores", lambda: found if device == "cpu" else 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    assert local_worker_count(CONFIG.model_copy(update={"workers": "auto"}), device) == count
    assert local_worker_count(CONFIG, device) == 0


@pytest.mark.parametrize(("keep_last", "keep_every"), [(1, 0), (2, 3), (3, 2)])
@pytest.mark.thorough
def test_a_run_takes_the_planned_room(tmp_path: Path, keep_last: int, keep_every: int) -> None:
    config = small_config(
        generations=7,
        replay={"capacity": 600},
        checkpoint={"keep_last": keep_last, "keep_every": keep_every},
        network={"channels": 64, "head_width": 64},
    )
    panel = random_panel(config, days=400, assets=24)
    state, written = start_training(config, panel), 0
    directory = RunDirectory.create(tmp_path, "planned", config.model_dump(mode="json"))
    with directory.lock():
        for _ in range(config.generations):
            advance(state, 1)
            written += directory.save(snapshot(state)).written_bytes
            directory.contents.clean(keep_last, keep_every, keep_champion=False, protected={1})
    left = sum(path.stat().st_size for path in (directory.path / "blobs").rglob("*") if path.is_file())
    plan = DiskPlan.of(Sizes.of(config, TaskData(panel)))
    assert plan.checkpoint_bytes == pytest.approx(written / config.generations, rel=0.05)
    assert plan.run_bytes - 240_000 == pytest.approx(left, rel=0.05)
    assert plan.most_bytes >= plan.run_bytes


def test_uploads_are_counted_where_the_store_is_elsewhere() -> None:
    away = CONFIG.checkpoint.model_copy(update={"store": "gs://bucket/runs"})
    once = CONFIG.reporting.model_copy(update={"plot_every": 0})
    stores = CONFIG.checkpoint, away
    here, there = (planned(generations=60, reporting=once, checkpoint=store).disk for store in stores)
    assert (here.upload_bytes, here.local_bytes) == (0, 0)
    assert there.checkpoint_bytes == here.checkpoint_bytes
    # The plots come last.
    assert there.upload_bytes == pytest.approx(60 * there.checkpoint_bytes + 240_000, abs=60)
    assert there.local_bytes > 0
