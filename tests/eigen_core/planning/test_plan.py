"""The plan as a whole: peaks, verdicts, what it shows."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from eigen_core.config.loading import load_config
from eigen_core.errors import InputError
from eigen_core.market import PanelFacts
from eigen_core.planning import PHASES, Limit, Phase, Plan, plan_of
from eigen_core.reporting.trackers.tensorboard import TensorBoardTracker

_FACTS = PanelFacts(days=3_700, columns=669, assets=108, features=9)


def _plan(*settings: str, server: bool = True, limits: Mapping[str, Limit] | None = None) -> Plan:
    return plan_of(load_config("eigen2", settings), _FACTS, device="cpu", server=server, limits=limits)


def test_a_phase_takes_the_sum_of_its_parts_and_the_peak_is_the_highest() -> None:
    plan = _plan()
    for phase in PHASES:
        assert plan.host_bytes(phase) == sum(part.host_bytes for part in plan.parts if phase in part.phases)
    assert plan.peak_host_bytes == max(plan.host_bytes(phase) for phase in PHASES)
    assert plan.host_bytes(plan.peak_phase()) == plan.peak_host_bytes
    assert [part.host_bytes for part in plan.largest()] == sorted(
        (part.host_bytes for part in plan.parts if plan.peak_phase() in part.phases), reverse=True
    )


def test_the_server_counts_only_where_there_is_one() -> None:
    with_server, without = _plan(), _plan(server=False)
    assert with_server.host_bytes("train", server=False) == without.host_bytes("train")
    assert with_server.peak_host_bytes - without.peak_host_bytes > 100e6


def test_a_torch_for_gpus_takes_more_on_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    without = _plan()
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert [part.name for part in _plan().parts if part not in without.parts] == ["unused CUDA"]
    assert _plan().peak_host_bytes - without.peak_host_bytes > 200e6


def test_a_verdict_says_what_is_missing_and_where_the_limit_comes_from() -> None:
    peak = _plan().peak_host_bytes
    fits = _plan(limits={"host": Limit(peak, "the machine's memory")})
    lacks = _plan(limits={"host": Limit(peak - 2_000_000_000, "memory.limit_gb")})
    assert fits.fits
    assert "fits into" in str(fits.verdicts[0])
    assert not lacks.fits
    assert lacks.verdicts[0].missing_bytes == 2_000_000_000
    assert "2.00 GB are missing" in str(lacks.verdicts[0])
    assert "memory.limit_gb" in str(lacks.verdicts[0])
    assert lacks.verdicts[0].phase == lacks.peak_phase()


def test_on_a_gpu_tensors_are_on_the_device_and_what_is_mapped_stays_on_the_host() -> None:
    # By itself it computes more at a time there.
    config = load_config("eigen2", ["network.column_chunk=64", "population.group_size=4"])
    host = plan_of(config, _FACTS, device="cpu")
    device = plan_of(config, _FACTS, device="cuda", limits={"device": Limit(10**9, "the driver")})
    assert host.peak_device_bytes == 0
    named = {part.name: part for part in device.parts}
    here = {part.name: part.host_bytes for part in host.parts}
    for name in ("population", "replay", "learning", "features"):
        assert 0 <= here[name] - named[name].device_bytes < 0.02 * here[name] + 1e6
    # More is encoded at a time there.
    assert named["evaluation"].device_bytes > here["evaluation"]
    assert named["panel"].device_bytes == 0
    assert device.verdicts[0].peak_bytes == device.peak_device_bytes > 10**9
    assert not device.fits


@pytest.mark.parametrize(
    ("smaller", "larger", "phase"),
    [
        ("network.column_chunk=32", "network.column_chunk=64", "train"),
        ("network.column_chunk=64", "network.column_chunk=669", "train"),
        ("population.group_size=2", "population.group_size=16", "evaluate"),
        ("network.column_chunk=64 learner.block_days=500", "network.column_chunk=64 learner.block_days=0", "train"),
        ("replay.capacity=20000", "replay.capacity=100000", "evolve"),
        ("network.channels=16 population.group_size=4", "network.channels=64 population.group_size=4", "train"),
        ("population.size=8", "population.size=32", "evolve"),
        ("learner.batch_size=4", "learner.batch_size=400", "train"),
        ("evaluation.slices=3", "evaluation.slices=20", "evaluate"),
    ],
)
def test_more_takes_more(smaller: str, larger: str, phase: Phase) -> None:
    assert _plan(*smaller.split()).host_bytes(phase) < _plan(*larger.split()).host_bytes(phase)


def test_a_run_that_never_learns_needs_no_second_population() -> None:
    assert {"learning", "second population"} <= {part.name for part in _plan().parts}
    assert not {"learning", "second population"} & {part.name for part in _plan("learner.gradient_steps=0").parts}
    assert not {"learning", "second population"} & {
        part.name for part in _plan("generations=1", "replay.minimum=50000").parts
    }


def test_every_part_is_explained_and_the_document_is_json() -> None:
    plan = _plan(limits={"host": Limit(10**9, "here")})
    document = json.loads(json.dumps(plan.document(), allow_nan=False))
    assert document["peak_host_bytes"] == plan.peak_host_bytes
    assert set(document["phases"]) == set(PHASES)
    assert document["fits"] is False
    for part in plan.parts:
        assert part.how.endswith(".")
        assert part.phases
    rows = plan.part_rows()
    assert len({tuple(row) for row in rows}) == 1
    assert len({row["part"] for row in rows}) == len(rows)
    total = sum(float(row["host (MB)"]) for row in rows if row["phases"] == "all" or "train" in str(row["phases"]))
    assert total == pytest.approx(plan.host_bytes("train") / 1e6, abs=1.0)


def test_uploads_take_memory_only_where_the_store_is_elsewhere() -> None:
    names = {part.name for part in _plan("checkpoint.store=gs://bucket/runs").parts}
    assert "upload queue" in names
    assert "upload queue" not in {part.name for part in _plan("checkpoint.store=/runs").parts}


def test_a_tracker_takes_what_it_says() -> None:
    tracked = _plan('reporting.trackers=["tensorboard"]').peak_host_bytes
    assert tracked - _plan().peak_host_bytes == TensorBoardTracker.memory_bytes > 0


def test_a_panel_tells_its_size_without_being_read() -> None:
    class Unreadable:
        """An array that has a shape and nothing else."""

        def __init__(self, array: NDArray[Any]) -> None:
            self.shape = array.shape

    from science_cases import random_panel, small_config

    config = small_config()
    panel = random_panel(config)
    arrays = {name: value for name, value in vars(panel).items() if isinstance(value, np.ndarray)}
    assert {"features", "valid", "close", "dates"} <= set(arrays)
    for name, array in arrays.items():
        object.__setattr__(panel, name, Unreadable(array))
    facts = PanelFacts.of(panel)
    assert (facts.days, facts.columns, facts.assets, facts.features) == (160, 8, 6, 4)
    assert not facts.mapped
    assert facts.train_days(config) == len(panel.splits.train)


def test_the_replay_is_planned_as_far_as_the_run_fills_it() -> None:
    few, more = _plan("replay.capacity=5000000"), _plan("replay.capacity=5000000", "generations=500")
    row = 4 + 2 + 108 * (4 * 2 + 2 * 2) + 4 + 1
    appended = 16 * 5 * 125
    sizes = [next(part.host_bytes for part in plan.parts if part.name == "replay") for plan in (few, more)]
    assert sizes == [25 * appended * row, 5_000_000 * row]
    # A resume replaces an empty buffer.
    assert few.unwritten_bytes == (2 * 5_000_000 - 25 * appended) * row
    assert more.unwritten_bytes == 5_000_000 * row
    # A GPU has no memory that is only promised.
    device = plan_of(load_config("eigen2", ["replay.capacity=5000000"]), _FACTS, device="cuda")
    assert next(part.device_bytes for part in device.parts if part.name == "replay") == 5_000_000 * row


def test_a_capacity_that_no_process_could_address_is_refused() -> None:
    wide = PanelFacts(days=3_700, columns=10_000, assets=10_000, features=9)
    with pytest.raises(InputError, match=r"replay\.capacity .* lower it\. This run appends 250,000 transitions\."):
        plan_of(load_config("eigen2", ["replay.capacity=1000000000"]), wide, device="cpu")
