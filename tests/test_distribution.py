"""What is installed is ours: install lines name our distribution and extras that it has; its metadata has a licence."""

import re
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml
from wheel_cases import ROOT, built_wheel, project_table

from eigen_core import __version__
from eigen_core.common.text import DISTRIBUTION, install_command
from eigen_core.config.registry import TRACKERS

EXTRAS = set(project_table()["optional-dependencies"])
FOLDERS = ("benchmarks", "deployments", "docs", "eigen_core", "flows", "tasks", "tests", ".ci")
# In the sources of tests the brackets of a pattern have a backslash before them.
_WITH_EXTRAS = re.compile(r"(?<![\w/-])(eigen[\w.-]*|\.)\\?\[([\w\s,{}-]+)\\?\]")
_INSTALLED = re.compile(r"\bpip3? install\b((?:[^`\n\\]|\\\n)*)")
_NAME = re.compile(r"(?<![\w./-])eigen[\w-]*")
_COMMAND = re.compile(r"install_command\(['\"](\w+)['\"]\)")


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
    assert all(map(wrong_installs, ("pip install eigen", "pip install -e '.[dev,document]'", "install_command('x')")))
    assert wrong_installs(install_command("sweep")) == []
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
