"""Each mark that the documentation names is reached by the command that it gives."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.control import MARKS

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^python -m benchmarks\.control (\S+ .*)--seeds 3\b", flags=re.MULTILINE)
COMMANDS = COMMAND.findall((ROOT / "docs" / "training.md").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mark_is_reached(command: str, tmp_path: Path) -> None:
    environment, *options = command.split()
    arguments = [environment, *options, "--seeds", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "benchmarks.control", *arguments], cwd=ROOT, check=True)
    (reached,) = tmp_path.glob("*/*/seed1/reached.csv")
    with reached.open(newline="") as file:
        *_, last = csv.DictReader(file)
    assert float(last["champion"]) >= MARKS[environment]
