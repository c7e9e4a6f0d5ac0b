"""The plan of a run against the limits of a machine, memory of other processes, and the refusal."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from memory_cases import HandMeter, hand_guard, host_bytes
from plan_cases import MB, MEASURED, pretended_probe

import eigen_core.memory_watch
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.machine.limits import ControlGroup, DeviceLimit, HostLimit, LimitKind
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.machine.memory_usage import DeviceUsage
from eigen_core.memory_watch import MemoryWatch
from eigen_core.planning import run_plan as module
from eigen_core.planning.memory_parts import CUDA_CONTEXT_BYTES, PHASES
from eigen_core.planning.probe import ProbeFailure, ProbeResult
from eigen_core.planning.run_plan import RunPlan, RunTooLargeError, plan_run, require_fit
from eigen_core.planning.sizes import Sizes
from eigen_core.task.interface import TaskData
from eigen_core.task.market import MarketTask

pytestmark = pytest.mark.usefixtures("without_api")

GB = 1_000_000_000
SETTINGS = ("device=cpu", "population.size=8", "market.features=classic")
DATA = MarketTask.data_of_shape(load_config("ddpg", SETTINGS), 1_800, 8, 6)


@pytest.fixture(autouse=True)
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The runs that were measured: all find the same, but for half of it where agents learn one by one."""
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path / "cache"))
    asked: list[Config] = []

    def probe(config: Config, shape: object, limit: int) -> ProbeResult:
        asked.append(config)
        return pretended_probe(config, shape, limit)

    monkeypatch.setattr(module, "probe", probe)
    return asked


def planned(*settings: str) -> RunPlan:
    return plan_run(load_config("ddpg", [*SETTINGS, *settings]), DATA)


def bounded(monkeypatch: pytest.MonkeyPatch, size: int, kind: LimitKind) -> None:
    limits = (HostLimit(size, f"a limit of kind {kind}", kind),)
    monkeypatch.setattr(module, "host_limits", lambda _: limits)


def peak_of(run_plan: RunPlan) -> int:
    return run_plan.peaks[run_plan.peak_phase()].host


def headroom_of(run_plan: RunPlan) -> int:
    (check,) = run_plan.memory_checks
    assert check.where == "host"
    return check.limit_bytes


def test_a_limit_of_the_runs_own_is_taken_up_to_the_hard_line() -> None:
    peak = peak_of(planned())
    enough, short = peak / 0.93 / GB + 0.001, peak / 0.93 / GB - 0.001
    fits, lacks = planned(f"memory.limit_gb={enough}"), planned(f"memory.limit_gb={short}")
    assert headroom_of(fits) == int(0.93 * int(enough * GB))
    assert fits.fits
    (lacking,) = [check for check in lacks.checks if not check.fits]
    assert 0 < lacking.missing_bytes < 2 * MB
    assert lacking.phase == lacks.peak_phase()
    assert planned(f"memory.limit_gb={short}", "memory.hard=0.95").fits
    assert planned("memory.limit_gb=0.5").sentence().endswith("replay.capacity or population.size.")


def test_what_others_take_of_the_machine_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, 100 * GB, "machine")
    machine = SimpleNamespace(total=100 * GB, available=60 * GB)
    monkeypatch.setattr("eigen_core.machine.memory_usage.psutil.virtual_memory", lambda: machine)
    assert headroom_of(planned()) == pytest.approx(93 * GB - (40 * GB - host_bytes()), abs=0.1 * GB)


def test_what_others_take_of_a_group_is_taken_off_and_the_limit_that_leaves_least_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = HostLimit(10 * GB, "a group", "group", ControlGroup(2, "/job", tmp_path))
    monkeypatch.setattr(module, "host_limits", lambda _: (HostLimit(9 * GB, "memory.limit_gb", "run"), group))
    (tmp_path / "memory.stat").write_text("active_file 1000000000\ninactive_file 0\nslab_reclaimable 0\n")
    (tmp_path / "memory.current").write_text(str(host_bytes() + 4 * GB))
    (crowded, _) = planned().checks
    # Of the 4 GB more than this process, one is files that the kernel drops.
    assert crowded.limit_bytes == pytest.approx(6.3 * GB, abs=0.1 * GB)
    assert "a group, less 3" in crowded.origin
    (tmp_path / "memory.current").write_text(str(GB + 1))
    (alone, _) = planned().checks
    assert (alone.limit_bytes, alone.origin) == (int(0.93 * 9 * GB), "93 % of 9.00 GB, memory.limit_gb")
    monkeypatch.setattr(module, "host_limits", lambda _: (group,))
    assert planned().checks[0].origin == "93 % of 10.00 GB, a group"
    # A group that cannot be read.
    (tmp_path / "memory.stat").unlink()
    assert planned().checks[0].origin == "93 % of 10.00 GB, a group"


def test_addresses_are_those_of_this_process_and_not_all_have_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, 20 * GB, "address_space")
    unused = 4 * GB
    monkeypatch.setattr("eigen_core.machine.memory_usage.statm", lambda *_: (1 * GB + unused, 1 * GB))
    run_plan = planned()
    assert headroom_of(run_plan) == pytest.approx(18.6 * GB - unused - run_plan.sizes.nonresident_bytes, abs=0.1 * GB)
    assert "of addresses that are not resident" in run_plan.checks[0].origin


def test_on_a_gpu_others_are_taken_off_and_the_own_context_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(module, "device_limit", lambda _: DeviceLimit(80 * GB, "A GPU", device))
    usage = DeviceUsage(allocated=0, reserved=1 * GB, taken=11 * GB + CUDA_CONTEXT_BYTES)
    monkeypatch.setattr("eigen_core.machine.memory_usage.device_bytes", lambda _: usage)
    run_plan = plan_run(*_on_gpu())
    (headroom,) = [check for check in run_plan.checks if check.where == "device"]
    assert headroom.limit_bytes == int(0.93 * 80 * GB) - 10 * GB
    assert "A GPU, less 10.00 GB that other processes use now" in headroom.origin
    assert run_plan.fits
    monkeypatch.setattr(module, "device_limit", lambda _: DeviceLimit(11 * GB, "A GPU", device))
    assert not plan_run(*_on_gpu()).fits


def test_the_guard_begins_every_phase_of_a_plan_that_fits_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUDA's context is in the plan, and in what the GPU says is taken: it counts once."""
    config, data = _on_gpu()
    plan = RunPlan.of(data, Sizes.of(config, data), MEASURED)
    peak = plan.peak_phase("device")
    limit = DeviceLimit(int(plan.peaks[peak].device / 0.93) + 10 * MB, "A GPU", torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for where in (module, eigen_core.memory_watch):
        monkeypatch.setattr(where, "device_limit", lambda _: limit)
    run_plan = plan_run(config, data)
    assert run_plan.fits
    watch = MemoryWatch(
        config, RunLocation.of(config.checkpoint.model_copy(update={"store": str(tmp_path)}), "run"), ()
    )
    context = CUDA_CONTEXT_BYTES
    meter = HandMeter(device=DeviceUsage(allocated=0, reserved=0, taken=context))
    watch.guard = hand_guard(meter, limits=(HostLimit(100 * GB, "much", "run"),), device_limit=limit)
    watch.set_plan(run_plan)
    with watch.guard:
        for phase in PHASES:
            with watch.guard.phase(phase, 1):
                pass
        meter.device = DeviceUsage(allocated=0, reserved=0, taken=context + 20 * MB)
        with pytest.raises(MemoryGuardError, match=f"{peak} was not started"), watch.guard.phase(peak, 1):
            pass


def _on_gpu() -> tuple[Config, TaskData]:
    config = load_config("ddpg", ["device=cuda", *SETTINGS[1:], "memory.limit_gb=12"])
    return config, DATA


@pytest.mark.cpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_a_run_for_a_gpu_is_planned_where_there_is_none_and_refused() -> None:
    config, data = _on_gpu()
    run_plan = plan_run(config, data)
    assert run_plan.peaks[run_plan.peak_phase("device")].device > 600 * MB
    assert not run_plan.fits
    assert "(torch finds no GPU here): that is too little. Use device cpu or auto" in run_plan.sentence()
    with pytest.raises(InputError, match="torch finds no GPU"):
        require_fit(config, data)


def test_what_the_process_of_a_training_has_loaded_already_is_in_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow has loaded Prefect, for example, which no probe does."""
    bounded(monkeypatch, 3 * GB, "run")

    def peak(own: int) -> int:
        monkeypatch.setattr("eigen_core.machine.memory_usage.statm", lambda *_: (9 * GB, own))
        return peak_of(require_fit(load_config("ddpg", SETTINGS), DATA))

    usual = peak(MEASURED.process)
    assert peak(MEASURED.process + 120 * MB) == pytest.approx(usual + 100 * MB, abs=5 * MB)


def test_a_training_is_measured_only_where_that_may_decide_and_once(probes: list[Config]) -> None:
    roomy, tight, small = (load_config("ddpg", [*SETTINGS, f"memory.limit_gb={size}"]) for size in (20, 3, 0.4))
    with pytest.raises(RunTooLargeError):
        require_fit(small, DATA)
    assert "it needs at least" in require_fit(roomy, DATA).sentence()
    assert probes == []
    assert "at least" not in require_fit(tight, DATA).sentence()
    assert require_fit(tight, DATA).measured == require_fit(roomy, DATA).measured == MEASURED
    assert probes == [tight]
    # `eigen plan` measures in any case.
    plan_run(roomy, DATA)
    assert probes == [tight, roomy]


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_probe_that_fails_refuses_a_run_only_where_it_ran_out_of_memory(
    out_of_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "probe", lambda *_: ProbeFailure("train", "it failed", out_of_memory=out_of_memory))
    config = load_config("ddpg", [*SETTINGS, "memory.limit_gb=3"])
    if not out_of_memory:
        assert require_fit(config, DATA).fits
        return
    with pytest.raises(RunTooLargeError, match=r"needs at least 2\.79 GB of host memory at the peak, in phase train"):
        require_fit(config, DATA)


def test_a_run_for_which_the_disk_has_no_room_is_refused_until_it_has_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("ddpg", [*SETTINGS, f"checkpoint.store={tmp_path}"])
    most = plan_run(config, DATA).disk.most_bytes
    usage = SimpleNamespace(total=100 * most, used=0, free=most - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        RunTooLargeError, match=rf"of the disk, and .* free at {tmp_path}\): .* are missing\. Free some"
    ):
        require_fit(config, DATA, "mine")
    (tmp_path / "mine" / "blobs").mkdir(parents=True)
    (tmp_path / "mine" / "blobs" / "one").write_bytes(bytes(10))
    assert require_fit(config, DATA, "mine").fits
    with pytest.raises(RunTooLargeError):
        require_fit(config, DATA, "other")
