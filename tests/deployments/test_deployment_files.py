"""What lies in deployments/ fits the rest: entrypoints, services, containers, clusters, rented machines."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_cases import check_command
from distributed.cli import dask_scheduler, dask_worker

from eigen_core.workers import worker_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployments"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


def test_what_prefect_reads_for_hooks_and_forms_loads_neither_torch_nor_pandas() -> None:
    document = yaml.safe_load((files("deployments") / "prefect.yaml").read_text(encoding="utf-8"))
    modules = {entry["entrypoint"].rpartition(".")[0] for entry in document["deployments"]}
    code = f"import sys, {', '.join(sorted(modules))}; print(*{{'torch', 'pandas', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("systemd/eigen-server.service", r"^ExecStart=(.*)$"),
        ("systemd/eigen-worker.service", r"^ExecStart=(.*)$"),
        ("cluster/compose.yaml", r"exec eigen (eigen [a-z].*)$"),
        ("cluster/skypilot.yaml", r"^ {4}(eigen [a-z].*)$"),
        ("RUNPOD.md", r"^(?:nohup sh -c 'until )?(\.venv/bin/eigen [^;|&\n]*)"),
        ("RUNPOD.md", r"exec (\S*eigen [^']*)'"),
        ("RUNPOD.md", r"`(eigen [a-z][^`]*)`"),
    ],
)
def test_the_commands_are_there(file: str, pattern: str) -> None:
    lines = re.findall(pattern, (FOLDER / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert lines
    for line in lines:
        check_command(line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_does_not_run_as_root_and_is_stopped_by_its_own_command(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert re.search(r"^ExecStart=.* --foreground", text, flags=re.MULTILINE)
    assert "User=eigen" in text
    # systemd itself must not end the training before the command has stopped it.
    assert "KillMode=mixed" in text


def test_the_worker_has_time_to_stop_its_training() -> None:
    from flows.server.up import GRACE_SECONDS

    text = (FOLDER / "systemd" / "eigen-worker.service").read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)
    assert float(seconds) >= GRACE_SECONDS + 30.0


def test_what_the_container_copies_is_there_and_it_does_not_run_as_root() -> None:
    text = (FOLDER / "container" / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", text)
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", lines, flags=re.MULTILINE)]
    assert copied
    assert all((ROOT / path).exists() for paths in copied for path in paths)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= {path for paths in copied for path in paths}
    assert re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)[-1] == "eigen"
    for kind in ("CMD", "HEALTHCHECK .*CMD"):
        (command,) = re.findall(rf"^{kind} (\[.*\])$", lines, flags=re.MULTILINE)
        check_command(shlex.join(yaml.safe_load(command)))
        # A server that other machines reach is refused without a password: the image must not go around that.
        assert "--without-password" not in command


CLUSTER = ROOT / "deployments" / "cluster"
FILES = sorted(CLUSTER.glob("*.yaml"))
DASK_COMMANDS = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text(encoding="utf-8")))


def dask_commands(node: object) -> Iterator[list[str]]:
    """The words of each Dask command below a node of a document."""
    if isinstance(node, str):
        yield from map(shlex.split, re.findall(r"(dask (?:scheduler|worker) [^;&]*)&", node))
    elif isinstance(node, list) and "dask" in node:
        yield node[node.index("dask") :]
    elif isinstance(node, list | dict):
        yield from chain.from_iterable(map(dask_commands, node.values() if isinstance(node, dict) else node))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_dask_takes_the_commands(file: Path) -> None:
    commands = list(dask_commands(documents(file.name)))
    assert sorted(words[:2] for words in commands) == [["dask", "scheduler"], ["dask", "worker"]]
    for _, kind, *options in commands:
        # Reads the words without running anything.
        taken = DASK_COMMANDS[kind].make_context(kind, options)
        assert taken.params.get("memory_limit", "0") == "0"


def test_wherever_it_is_named_dask_is_to_limit_no_worker() -> None:
    """Else it kills one before the guard of the run can end the phase."""
    folders = ("docs", "deployments", "flows")
    files = chain.from_iterable((ROOT / folder).rglob("*.*") for folder in folders)
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".md", ".yaml", ".py")]
    named = [line for text in texts for line in re.findall(r"dask worker [^`\n]*", text)]
    assert named
    assert [line for line in [*named, worker_command("tcp://host:8786")] if "--memory-limit 0" not in line] == []


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


def test_compose_publishes_no_port_of_the_scheduler_and_asks_for_a_password() -> None:
    services = documents("compose.yaml")[0]["services"]
    assert "ports" not in services["scheduler"]
    assert all(port.startswith("127.0.0.1:") for port in services["eigen"]["ports"])
    # Its server does not start without a password.
    password = services["eigen"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"]
    assert password.startswith("${PREFECT_SERVER_API_AUTH_STRING:?")
