"""`eigen doctor`: what it looks at, that no look stops another, exit codes, and that it leaves nothing behind."""

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_cases import eigen
from flow_cases import free_port

from flows.cli import doctor as module

pytestmark = pytest.mark.usefixtures("without_api")

CHECKS = ["python", "device", "data", "memory", "server", "store", "disk", "workers"]


@pytest.fixture(autouse=True)
def folder(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, which must be empty afterwards but for what a test put there."""
    # Else a torch for GPUs warns where there is none.
    monkeypatch.setattr("torch.version.cuda", None)
    yield user_folder
    assert not [path for path in user_folder.rglob("*") if "doctor" in path.name or path.name == "runs"]


def found(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What `eigen doctor --json` has found, by check."""
    ended = eigen("doctor", *arguments, "--json")
    assert ended.exit_code == code, ended.output
    assert ended.stderr == ""
    document = json.loads(ended.stdout)
    assert list(document) == ["healthy", "checks"]
    assert document["healthy"] is (code == 0)
    assert all(list(check) == ["check", "status", "found", "advice"] for check in document["checks"])
    assert [check["check"] for check in document["checks"]] == CHECKS
    return {check["check"]: check for check in document["checks"]}


def statuses(checks: dict[str, Any]) -> dict[str, str]:
    """What is not well."""
    return {name: check["status"] for name, check in checks.items() if check["status"] != "ok"}


def test_on_a_machine_that_can_train_all_is_well() -> None:
    checks = found("--device", "cpu", "--set", "memory.limit_gb=8")
    assert statuses(checks) == {}
    assert "memory.limit_gb" in checks["memory"]["found"]
    text = eigen("doctor", "--device", "cpu", "--set", "memory.limit_gb=8").stdout
    assert text.count("\nok  ") == len(CHECKS) - 1
    assert text.endswith("All 8 checks passed: train with `eigen train`.\n")


def test_bad_memory_and_a_bad_store_are_findings_of_their_own(folder: Path) -> None:
    (folder / "file").write_text("no folder")
    given = ("--store", "file/runs", "--set", "memory.limit_gb=0.4")
    checks = found(*given, code=1)
    assert statuses(checks) == {"memory": "failed", "store": "failed"}
    assert "The run does not fit" in checks["memory"]["found"]
    assert "file" in checks["store"]["found"]
    assert "2 failed, 0 with a warning, of 8 checks." in eigen("doctor", *given).stdout


def test_bad_data_leaves_open_the_checks_that_need_them() -> None:
    checks = found("--data", "nowhere.csv", code=1)
    assert statuses(checks) == {"data": "failed", "memory": "warning", "disk": "warning"}
    assert "nowhere.csv" in checks["data"]["found"]


def test_a_disk_without_room_for_the_run_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status, code in ((5 * 10**6, "failed", 1), (10**9, "ok", 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free, total=10**10))
        assert found(code=code)["disk"]["status"] == status


@pytest.mark.cpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    checks = found("--device", "cuda", code=1)
    assert statuses(checks)["device"] == "failed"
    driver = folder / "driver"
    driver.touch()
    monkeypatch.setattr(module, "_DRIVER", driver)
    checks = found()
    assert statuses(checks) == {"device": "warning"}
    assert "but torch is built for the CPU" in checks["device"]["found"]
    monkeypatch.setattr("torch.version.cuda", "12.8")
    checks = found()
    assert statuses(checks) == {"device": "warning"}
    assert "built for CUDA 12.8" in checks["python"]["found"]
    assert "nvidia-smi" in checks["device"]["advice"]


def test_a_package_that_cannot_be_loaded_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eigen_core.task", None)
    checks = found(code=1)
    assert statuses(checks) == {"data": "failed", "memory": "warning", "disk": "warning"}
    assert "make setup" in checks["data"]["advice"]


def test_whatever_a_look_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr("flows.server.servers.require_database", broken)
    checks = found(code=1)
    assert statuses(checks) == {"server": "failed"}
    assert checks["server"]["found"] == "ZeroDivisionError: first line"


def test_an_api_is_asked_and_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_API_SECONDS", 0.2)
    monkeypatch.setattr("flows.server.servers.configured_api", lambda _: "http://127.0.0.1:1/api")
    monkeypatch.setattr("flows.server.servers.require_answer", lambda _: time.sleep(30))
    assert statuses(found(code=1)) == {"server": "failed"}


def test_a_store_elsewhere_is_asked(gcs_bucket: str) -> None:
    checks = found("--store", f"{gcs_bucket}/prefix")
    assert statuses(checks) == {}
    assert f"{gcs_bucket}/prefix answers" in checks["store"]["found"]
    assert ".remote/gs/" in checks["store"]["found"]
    checks = found("--store", "gs://bucket-that-is-not-there/prefix", code=1)
    assert statuses(checks) == {"store": "failed"}


@pytest.mark.thorough
def test_workers_of_a_scheduler_are_counted_and_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        gone = f"tcp://127.0.0.1:{free_port()}"
        for addresses, status in (([], "failed"), ([there], "ok"), ([there, gone], "warning"), ([gone], "failed")):
            client = SimpleNamespace(nthreads=lambda addresses=addresses: dict.fromkeys(addresses, 1))
            monkeypatch.setattr("eigen_core.workers.connected", lambda _, client=client: nullcontext(client))
            checks = found("--set", "scheduler=tcp://host:8786", code=int(status == "failed"))
            assert checks["workers"]["status"] == status
            assert (gone in checks["workers"]["advice"]) == (gone in addresses)
