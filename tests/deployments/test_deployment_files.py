"""What lies in deployments/ fits the rest: entrypoints, services, the container file, the guide for rented machines."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import check_command
from wheel_cases import built_wheel

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployments"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found = yaml.safe_load((files("deployments") / "prefect.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def deployment(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (entry for entry in document["deployments"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def test_the_version_is_the_one_that_is_pinned(document: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"prefect=={document['prefect-version']}" in project["dependencies"]


@pytest.mark.parametrize(("name", "flow"), [("gpu", "train"), ("weekly", "cleanup")])
def test_the_entrypoints_are_flows_of_the_installed_package(document: dict[str, Any], name: str, flow: str) -> None:
    module, _, function = deployment(document, name)["entrypoint"].rpartition(".")
    assert getattr(importlib.import_module(module), function).name == flow


def test_what_prefect_reads_for_hooks_and_forms_loads_neither_torch_nor_pandas(document: dict[str, Any]) -> None:
    modules = {entry["entrypoint"].rpartition(".")[0] for entry in document["deployments"]}
    code = f"import sys, {', '.join(sorted(modules))}; print(*{{'torch', 'pandas', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert loaded.stdout.split() == []


def test_the_step_before_a_flow_is_there(document: dict[str, Any]) -> None:
    for entry in document["deployments"]:
        (step,) = entry["pull"]
        ((name, inputs),) = step.items()
        module, _, function = name.rpartition(".")
        assert inputs == {}
        assert callable(getattr(importlib.import_module(module), function))


def test_a_wheel_brings_the_file_along(tmp_path: Path, document: dict[str, Any]) -> None:
    with zipfile.ZipFile(built_wheel(tmp_path)) as archive:
        assert yaml.safe_load(archive.read("deployments/prefect.yaml")) == document
        assert "flows/server/up.py" in archive.namelist()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_services_run_commands_that_there_are(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, flags=re.MULTILINE)
    check_command(line)
    assert "--foreground" in line
    assert "User=eigen" in text
    # systemd itself must not end the training before the command has stopped it.
    assert "KillMode=mixed" in text


def test_the_worker_has_time_to_stop_its_training() -> None:
    from flows.server.up import GRACE_SECONDS

    text = (FOLDER / "systemd" / "eigen-worker.service").read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)
    assert float(seconds) >= GRACE_SECONDS + 30.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/eigen/.venv/bin/eigen", "/bin/sh")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = [str(tmp_path / unit.name) for unit in UNITS]
    ended = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    own = [line for line in ended.stderr.splitlines() if "eigen" in line]
    assert own == []


def test_what_the_container_copies_is_there_and_it_does_not_run_as_root() -> None:
    text = (FOLDER / "container" / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", text)
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", lines, flags=re.MULTILINE)]
    assert copied
    assert all((ROOT / path).exists() for paths in copied for path in paths)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= {path for paths in copied for path in paths}
    assert re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)[-1].startswith("nvidia/cuda:")
    assert re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)[-1] == "eigen"
    for kind in ("CMD", "HEALTHCHECK .*CMD"):
        found = re.findall(rf"^{kind} (\[.*\])$", lines, flags=re.MULTILINE)
        assert len(found) == 1
        check_command(shlex.join(yaml.safe_load(found[0])))
    # A server that other machines reach is refused without a password: the image must not go around that.
    assert "--without-password" not in re.findall(r"^CMD (.*)$", text, flags=re.MULTILINE)[-1]
    (example,) = re.findall(r"^#   docker run \.\.\. eigen (eigen .*)$", text, flags=re.MULTILINE)
    check_command(example)


def test_the_guide_for_rented_machines_has_six_commands_that_there_are() -> None:
    text = (FOLDER / "RUNPOD.md").read_text(encoding="utf-8")
    section = text.split("## Six commands", 1)[1].split("```")[1]
    commands = [line for line in section.splitlines() if line.strip()]
    assert len(commands) == 6
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in re.findall(r"make (\w+)", section))
    for line in commands:
        if ".venv/bin/eigen" in line:
            check_command(line)
    for line in re.findall(r"`(eigen [a-z][^`]*)`", text):
        check_command(line)
    (start,) = re.findall(r"exec (\S*eigen [^']*)'", text)
    check_command(start)


@pytest.mark.skipif(os.environ.get("EIGEN_BUILD_IMAGE") is None, reason="EIGEN_BUILD_IMAGE names no builder")
def test_the_image_builds() -> None:
    command = [os.environ["EIGEN_BUILD_IMAGE"], "build", "-f", "deployments/container/Containerfile", "."]
    subprocess.run(command, cwd=ROOT, check=True)
