"""The wheel, installed into a virtual environment of its own, works where there is no clone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flow_cases import small_settings
from operated import BUSY_SECONDS, Operated
from wheel_cases import built_wheel

from eigen_core import __version__
from eigen_core.common.text import DISTRIBUTION

pytestmark = pytest.mark.thorough

SETTINGS = small_settings(market={"holdout_days": 120})
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
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which finds the dependencies of the tests, and nothing of the clone."""
    folder = tmp_path_factory.mktemp("environment")
    wheel = str(built_wheel(tmp_path_factory.mktemp("wheel")))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", wheel], cwd=folder, check=True, timeout=300)
    (packages,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(shared) + "\n")
    return folder


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Iterator[Installed]:
    """A folder of its own for its user; whatever was started there has ended afterwards."""
    with Installed(tmp_path, environment) as found:
        yield found


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


def test_a_run_is_launched_and_trained_by_the_worker(installed: Installed) -> None:
    installed.up()
    assert {installed.process(part).cmdline()[0] for part in ("server", "worker")} == {installed.python}
    number = installed.launch("second", ["--generations", "2", *SETTINGS])
    assert installed.wait_for_end(number, BUSY_SECONDS) == "Completed"
    assert installed.generation("second") == 2
    installed.down()
    assert installed.try_eigen("status", "--healthy").returncode == 1
