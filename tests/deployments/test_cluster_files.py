"""What lies in deployments/cluster/ has its tool's form, and names commands that there are."""

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import check_command
from distributed.cli import dask_scheduler, dask_worker

from eigen_core.workers import worker_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployments" / "cluster"
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
        taken = COMMANDS[words[1]].make_context(words[1], list(words[2:]))
        assert taken.params.get("memory_limit", "0") == "0"
    assert sorted(kinds) == ["scheduler", "worker"]


def test_wherever_it_is_named_dask_is_to_limit_no_worker() -> None:
    """Else it kills one before the guard of the run can end the phase."""
    folders = ("docs", "deployments", "eigen_core", "flows")
    files = chain.from_iterable((ROOT / folder).rglob("*.*") for folder in folders)
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".md", ".yaml", ".py")]
    # Sentences have it from one function.
    named = [line for text in texts for line in re.findall(r"dask worker [^`\n]*|worker_command\(", text)]
    assert len(named) >= 8
    assert [line for line in named if line.startswith("dask") and "--memory-limit 0" not in line] == []
    assert "--memory-limit 0" in worker_command("tcp://host:8786")


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
    for deployment in (scheduler, worker):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_in_kubernetes_only_pods_of_the_namespace_reach_scheduler_and_workers() -> None:
    _, policy, *deployments = documents("kubernetes.yaml")
    spec = policy["spec"]
    (expression,) = spec["podSelector"]["matchExpressions"]
    assert expression["operator"] == "In"
    for deployment in deployments:
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels[expression["key"]] in expression["values"]
    assert spec["policyTypes"] == ["Ingress"]
    # All of them, at any port: a worker chooses its own, and the pod of a training has no label that is known here.
    assert spec["ingress"] == [{"from": [{"podSelector": {}}]}]


def test_compose_publishes_no_port_of_the_scheduler() -> None:
    services = documents("compose.yaml")[0]["services"]
    assert "ports" not in services["scheduler"]
    assert all(port.startswith("127.0.0.1:") for port in services["eigen"]["ports"])
    assert (FOLDER / services["worker"].get("build", services["scheduler"]["build"])["context"]).resolve().is_dir()
    assert "tcp://scheduler:8786" in services["worker"]["entrypoint"]


def test_compose_asks_for_the_password_without_which_its_server_would_not_start() -> None:
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    environment = documents("compose.yaml")[0]["services"]["eigen"]["environment"]
    assert environment["PREFECT_SERVER_API_AUTH_STRING"].startswith("${PREFECT_SERVER_API_AUTH_STRING:?")
    # The header names it before the first command that needs it.
    assert text.index("#   export PREFECT_SERVER_API_AUTH_STRING=") < text.index("#   docker compose ")


def test_in_compose_only_what_runs_eigens_server_is_asked_for_its_health() -> None:
    for name, service in documents("compose.yaml")[0]["services"].items():
        runs_image_command = "entrypoint" not in service and "command" not in service
        assert runs_image_command == (name == "eigen")
        assert service.get("healthcheck", {}).get("disable", False) == (not runs_image_command)
