"""What lies in deployments/cluster/ has its tool's form, and names commands that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import check_command
from distributed.cli import dask_scheduler, dask_worker

FOLDER = Path(__file__).parents[2] / "deployments" / "cluster"
FILES = sorted(FOLDER.glob("*.yaml"))
COMMANDS = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def dask_commands(name: str) -> Iterator[list[str]]:
    """The words of each Dask command in a file."""
    if name == "compose.yaml":
        for service in documents(name)[0]["services"].values():
            if "dask" in service.get("entrypoint", ()):
                yield service["entrypoint"][2:]
    elif name == "kubernetes.yaml":
        for document in documents(name):
            if document["kind"] == "Deployment":
                (container,) = document["spec"]["template"]["spec"]["containers"]
                yield container["command"][2:]
    else:
        for line in re.findall(r"(dask (?:scheduler|worker) [^;&]*)&", documents(name)[0]["run"]):
            yield shlex.split(line)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_dask_takes_the_commands(file: Path) -> None:
    kinds = []
    for words in dask_commands(file.name):
        assert words[0] == "dask"
        kinds.append(words[1])
        # Reads the words without running anything.
        COMMANDS[words[1]].make_context(words[1], list(words[2:]))
    assert sorted(kinds) == ["scheduler", "worker"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_eigen_takes_the_commands(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = [match.strip() for match in re.findall(r"(?:exec eigen |^ {4})(eigen [a-z].*)$", text, flags=re.MULTILINE)]
    for line in found:
        check_command(line)
    assert found or file.name == "kubernetes.yaml"


def test_what_kubernetes_runs_is_reached_by_the_name_that_workers_use() -> None:
    service, policy, scheduler, worker = documents("kubernetes.yaml")
    assert [document["kind"] for document in (service, policy, scheduler, worker)] == [
        "Service",
        "NetworkPolicy",
        "Deployment",
        "Deployment",
    ]
    (port,) = service["spec"]["ports"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert f"tcp://{service['metadata']['name']}:{port['port']}" in container["command"]
    assert service["spec"]["selector"] == scheduler["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"]
    for deployment in (scheduler, worker):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_compose_publishes_no_port_of_the_scheduler() -> None:
    services = documents("compose.yaml")[0]["services"]
    assert "ports" not in services["scheduler"]
    assert all(port.startswith("127.0.0.1:") for port in services["eigen"]["ports"])
    assert (FOLDER / services["worker"].get("build", services["scheduler"]["build"])["context"]).resolve().is_dir()
    assert "tcp://scheduler:8786" in services["worker"]["entrypoint"]
