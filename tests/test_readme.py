"""What the README shows works as it is written there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import advance, market_of, small_state

from eigen_core.checkpoint import RunDirectory, write_champion
from eigen_core.generation import snapshot

README = Path(__file__).parents[1] / "README.md"


def python_examples() -> list[str]:
    """The README's pieces of Python."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_champion_is_read_in_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (example for example in python_examples() if "read_champion" in example)
    assert len([line for line in example.splitlines() if line]) == 3
    state = advance(small_state(), 1)
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state), state.config.model_dump(mode="json"))
    write_champion(directory.contents, tmp_path / "c.safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert state.champion is not None
    assert torch.equal(names["weights"], state.champion.weights)
    assert names["config"] == state.config.model_dump(mode="json")
    assert names["facts"]["assets"] == market_of(state).panel.assets


def test_the_python_example_runs_in_a_dozen_lines_without_prefect(tmp_path: Path) -> None:
    (example,) = (example for example in python_examples() if "start_training" in example)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    script = example + "\nimport sys\nassert 'prefect' not in sys.modules\n"
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "best_fitness" in ended.stdout
    assert len(re.findall(r"^\d+ ", ended.stdout, flags=re.MULTILINE)) == 3


def test_every_command_of_the_readme_is_known() -> None:
    text = README.read_text(encoding="utf-8")
    commands = set(re.findall(r"^eigen (\w+)", text, flags=re.MULTILINE))
    targets = set(re.findall(r"^make (\w+)", text, flags=re.MULTILINE))
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    listed = subprocess.run([sys.executable, "-m", "flows.cli", "--help"], capture_output=True, text=True).stdout
    assert commands
    assert targets
    assert all(command in listed for command in commands)
    assert all(f"\n{target}:" in makefile for target in targets)
