"""What the command line imports before it knows what is asked."""

import subprocess
import sys

import pytest

SLOW = ("torch", "prefect", "pandas", "numpy", "yaml", "httpx", "psutil", "eigen_core.config")


@pytest.mark.parametrize("command", [[], ["train"], ["runs"], ["up"]], ids=" ".join)
def test_help_imports_nothing_that_takes_long(command: list[str]) -> None:
    code = (
        "import sys\nfrom flows.cli.app import app\n"
        f"try:\n    app([*{command}, '--help'])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Usage:" in ended.stdout
    assert set(SLOW) & set(ended.stderr.split()) == set()
