"""What is installed is ours: install lines name our distribution, its metadata a licence; it works without a clone."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from flow_cases import small_settings
from operated import BUSY_SECONDS, Operated

from eigen_core import __version__
from eigen_core.common.text import DISTRIBUTION
from eigen_core.config.registry import TRACKERS

ROOT = Path(__file__).parents[1]


def project_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def built_wheel(folder: Path) -> Path:
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("eigen_core", "tasks", "flows", "deployments"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY.md"):
        shutil.copy(ROOT / name, source / name)
    code = "from setuptools.build_meta import build_wheel; print(build_wheel('..'))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


EXTRAS = set(project_table()["optional-dependencies"])
FOLDERS = ("benchmarks", "deployments", "docs", "eigen_core", "flows", "tasks", "tests", ".ci")
# In the sources of tests the brackets of a pattern have a backslash before them.
_WITH_EXTRAS = re.compile(r"(?<![\w/-])(eigen[\w.-]*|\.)\\?\[([\w\s,{}-]+)\\?\]")
_INSTALLED = re.compile(r"\bpip3? install\b((?:[^`\n\\]|\\\n)*)")
_NAME = re.compile(r"(?<![\w./-])eigen[\w-]*")
_COMMAND = re.compile(r"needs_extra\(['\"](\w+)['\"]")


def wrong_installs(text: str) -> list[str]:
    """Requirements in a text that name another distribution than ours, or an extra that ours lacks."""
    named = [(name, extra.strip()) for name, extras in _WITH_EXTRAS.findall(text) for extra in extras.split(",")]
    named += [(DISTRIBUTION, extra) for extra in _COMMAND.findall(text)]
    named += [(name, "") for line in _INSTALLED.findall(text) for name in _NAME.findall(line)]
    return [
        f"{name}[{extra}]"
        for name, extra in named
        if name not in (DISTRIBUTION, ".") or not (extra in ("", *EXTRAS) or extra.startswith("{"))
    ]


def test_every_advice_to_install_names_what_we_distribute() -> None:
    paths = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc" and path != Path(__file__)]
    texts = {path: path.read_text(encoding="utf-8", errors="ignore") for path in files}
    assert sum(DISTRIBUTION in text for text in texts.values()) > 5
    wrong = {str(path.relative_to(ROOT)): found for path, text in texts.items() if (found := wrong_installs(text))}
    assert wrong == {}
    # The search finds what it should, in the message of a missing package too.
    assert all(map(wrong_installs, ("pip install eigen", "pip install -e '.[dev,document]'", "needs_extra('x', '')")))
    assert wrong_installs(f"pip install '{DISTRIBUTION}[sweep]' or {DISTRIBUTION}[{{extra}}]") == []
    assert (project_table()["name"], set(TRACKERS) <= EXTRAS) == (DISTRIBUTION, True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(path))


def test_who_installs_the_wheel_gets_its_licence_and_those_of_the_bundled_prices(
    wheel: Path, metadata: Message
) -> None:
    assert metadata["Name"] == DISTRIBUTION
    assert metadata["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(wheel) as archive:
        folder = f"{wheel.name.rpartition('-py3')[0]}.dist-info/licenses"
        texts = [archive.read(f"{folder}/{path}").decode() for path in metadata.get_all("License-File", [])]
    assert any("Apache License" in text and "END OF TERMS AND CONDITIONS" in text for text in texts)
    assert any("BSD-3-Clause" in text and "Redistribution and use" in text for text in texts)


def test_ci_runs_on_the_pythons_of_the_metadata_and_hooks_are_what_make_lint_calls(metadata: Message) -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    named = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier", ()) if "Python :: 3." in line}
    assert set(job["strategy"]["matrix"]["python"]) == named
    assert job["steps"][-1]["run"] == ".ci/run"
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    tools = {" ".join(hook["entry"].split()[:2]).removesuffix(" check") for hook in local["hooks"]}
    lint = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    assert tools == {".venv/bin/ruff", ".venv/bin/ruff format", ".venv/bin/mypy"}
    assert all(tool in lint for tool in tools)


def test_the_metadata_and_make_take_the_same_pythons(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    classifiers = metadata.get_all("Classifier", [])
    minors = {int(found[1]) for entry in classifiers if (found := re.search(r"Python :: 3\.(\d+)$", entry))}
    first, end = map(int, re.findall(r"3\.(\d+)", project_table()["requires-python"]))
    assert minors == set(range(first, end))
    tried = " ".join(f"3.{minor}" for minor in sorted(minors, reverse=True))
    assert f"for version in {tried};" in (ROOT / "Makefile").read_text(encoding="utf-8")


SETTINGS = small_settings(market={"holdout": 120})
WHERE = f"""
import importlib.metadata, deployments, eigen_core, flows, tasks
print(importlib.metadata.version("{DISTRIBUTION}"))
for package in (deployments, eigen_core, flows, tasks):
    print(package.__path__[0])
"""


class Installed(Operated):
    """A user's folder, where the commands of an installed wheel run."""

    def __init__(self, folder: Path, environment: Path) -> None:
        super().__init__(folder)
        self.python = str(environment / "bin" / "python")
        self._command = str(environment / "bin" / "eigen")
        self.environment.pop("PYTHONPATH", None)

    def try_eigen(self, *arguments: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        return self._run([self._command, *arguments], seconds)

    def run(self, *arguments: str) -> str:
        """What a command of the virtual environment's Python prints, which must succeed."""
        ended = self._run([self.python, *arguments], 60.0)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def _run(self, command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=seconds
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A virtual environment with the wheel, which finds the dependencies of the tests, and nothing of the clone."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], cwd=folder, check=True, timeout=300)
    (packages,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(shared) + "\n")
    return folder


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Iterator[Installed]:
    """A folder of its own for its user; whatever was started there has ended afterwards."""
    with Installed(tmp_path, environment) as found:
        yield found


@pytest.mark.thorough
def test_a_run_is_trained_resumed_and_reported(installed: Installed, environment: Path) -> None:
    version, *packages = installed.run("-c", WHERE).splitlines()
    assert version == __version__
    assert all(environment in Path(package).parents for package in packages)
    installed.eigen("train", "--run", "first", "--generations", "1", *SETTINGS)
    installed.eigen("resume", "first", "--generations", "2")
    assert installed.generation("first") == 2
    installed.eigen("report", "first")
    (page,) = installed.folder.rglob("*.html")
    assert "first" in page.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_run_is_launched_and_trained_by_the_worker(installed: Installed) -> None:
    installed.up()
    assert {installed.process(part).cmdline()[0] for part in ("server", "worker")} == {installed.python}
    number = installed.launch("second", ["--generations", "2", *SETTINGS])
    assert installed.wait_for_end(number, BUSY_SECONDS) == "Completed"
    assert installed.generation("second") == 2
    installed.down()
    assert installed.try_eigen("status", "--healthy").returncode == 1
