"""What the plan of a run says of its workers."""

import sys
from typing import Literal

import pytest
import torch
from science_cases import random_panel, small_config

from eigen_core.config import Config
from eigen_core.market import PanelFacts
from eigen_core.planning import Plan, plan_of
from eigen_core.planning.parts import Part
from eigen_core.planning.scale import Scale
from eigen_core.planning.workers import has_workers, local_worker_count, worker_needs

CONFIG = small_config(population={"size": 8})
FACTS = PanelFacts.of(random_panel(CONFIG))


def planned(**settings: object) -> Plan:
    return plan_of(CONFIG.model_copy(update=settings), FACTS, device="cpu", server=False)


def part(plan: Plan, name: str) -> int:
    return sum(one.host_bytes for one in plan.parts if one.name == name)


def test_workers_take_memory_of_this_machine_and_the_agents_from_the_run_itself() -> None:
    alone, two, four = planned(), planned(workers=2), planned(workers=4)
    assert not [one.name for one in alone.parts if one.name.startswith("workers")]
    assert part(four, "workers") == 2 * part(two, "workers") > 4e8
    # They read the one of the run.
    assert part(two, "workers' replays") == 0
    assert part(two, "replay") == part(alone, "replay")
    # Each has half of the agents of one of two.
    assert part(four, "workers' agents") == part(two, "workers' agents") == 2 * part(alone, "population")
    assert part(two, "evaluation") < part(alone, "evaluation")
    assert alone.peak_host_bytes < two.peak_host_bytes < four.peak_host_bytes


@pytest.mark.parametrize(("platform", "device"), [("darwin", "cpu"), ("linux", "cuda")])
def test_where_memory_is_not_shared_each_has_a_copy_of_the_replay(
    platform: str, device: Literal["cpu", "cuda"], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = sum(part.host_bytes for part in planned(workers=1).parts if part.name == "learning")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    one, three = (
        plan_of(CONFIG.model_copy(update={"workers": count}), FACTS, device=device, server=False) for count in (1, 3)
    )
    sizes = [{part.name: part.host_bytes + part.device_bytes for part in plan.parts} for plan in (one, three)]
    # GPUs copy from one that is on the host.
    on_host = sizes[0]["workers' replays"] // 2 if device == "cuda" else 0
    assert sizes[1]["workers' replays"] - on_host == 3 * (sizes[0]["workers' replays"] - on_host) > 0
    # It is sent, too.
    assert sizes[0]["learning"] > shared


def test_what_workers_hold_on_a_gpu_is_not_what_the_training_allocates() -> None:
    alone, two = (
        plan_of(CONFIG.model_copy(update={"workers": count}), FACTS, device="cuda", server=False) for count in (0, 2)
    )
    for plan in (alone, two):
        held = [plan.held_on_device("train", holder) for holder in ("training", "driver", "workers")]
        assert sum(held) == plan.device_bytes("train")
    assert alone.held_on_device("train", "workers") == 0
    assert alone.held_on_device("train", "driver") == two.held_on_device("train", "driver") > 0
    named = sum(part.device_bytes for part in two.parts if part.name.startswith("workers") and "train" in part.phases)
    assert two.held_on_device("train", "workers") == named > 0


def test_a_worker_learns_with_no_more_agents_at_a_time_than_its_share() -> None:
    config = CONFIG.model_copy(update={"population": CONFIG.population.model_copy(update={"group_size": 8})})
    scale = Scale.of(config, FACTS)
    train = [worker_needs(scale, count, "cpu").train for count in (1, 2, 4)]
    assert train[0] > 1.5 * train[1] > 2 * train[2]


def test_workers_of_a_scheduler_take_nothing_here() -> None:
    plan = planned(scheduler="tcp://elsewhere:8786")
    assert not [one.name for one in plan.parts if one.name.startswith("workers")]
    assert plan.host_bytes("evaluate") < planned().host_bytes("evaluate")
    assert has_workers(CONFIG.model_copy(update={"scheduler": "tcp://elsewhere:8786"}), "cuda")


@pytest.mark.parametrize(("cores", "count"), [(1, 0), (2, 2), (6, 6), (64, 8)])
def test_auto_takes_the_cores_and_at_most_one_an_agent(cores: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.planning.workers.usable_cores", lambda: cores)
    config: Config = CONFIG.model_copy(update={"workers": "auto"})
    assert local_worker_count(config, "cpu") == count
    assert local_worker_count(CONFIG, "cpu") == 0


@pytest.mark.parametrize(("gpus", "count"), [(1, 0), (2, 2), (6, 6), (64, 8)])
def test_auto_takes_all_gpus_where_there_are_several(gpus: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert local_worker_count(CONFIG.model_copy(update={"workers": "auto"}), "cuda") == count


def test_a_gpu_is_planned_for_the_workers_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(workers: int, gpus: int) -> list[Part]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        config = CONFIG.model_copy(update={"workers": workers})
        plan = plan_of(config, FACTS, device="cuda", server=False)
        return [part for part in plan.parts if part.name.startswith("workers")]

    def held(workers: int, gpus: int) -> dict[str, int]:
        return {part.name: part.device_bytes for part in parts(workers, gpus)}

    one_gpu = held(4, 1)
    for name, size in one_gpu.items():
        assert held(4, 2)[name] * 2 == held(4, 4)[name] * 4 == size
        assert held(4, 3)[name] == held(4, 2)[name]
    assert one_gpu["workers' replays"] > 0
    [replays] = [part for part in parts(4, 2) if part.name == "workers' replays"]
    assert replays.how.startswith("A copy of the replay in each of the 2 that share a GPU, of 4 in all")
