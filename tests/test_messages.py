"""What messages tell a user to type: commands that exist, with foreign texts in quotes."""

import ast
import re
from pathlib import Path

import pytest
from flow_cases import eigen_environment, run_eigen

from eigen_core.common.errors import InputError
from eigen_core.runs.handle import require_trusted_task

ROOT = Path(__file__).parents[1]
# The end of a text after which a value of a command, an option or a variable follows.
_PASTED = re.compile(r"(`(eigen|prefect|dask|pip|export) [^`]*|--(store|data|set) ([\w.]+=)?|\b[A-Z]+_[A-Z_]+=)$")
_CHECKED_NAMES = ("name", "self.name", "location.name")


def test_foreign_texts_in_commands_are_quoted_for_a_shell() -> None:
    """A task or a path from a store may contain what a shell would run; names of runs are letters, digits and `._-`."""
    unquoted = []
    for path in (path for folder in ("eigen_core", "flows", "tasks") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = ""
            for part in node.values if isinstance(node, ast.JoinedStr) else ():
                if isinstance(part, ast.FormattedValue):
                    value = ast.unparse(part.value)
                    is_safe = value in _CHECKED_NAMES or value.startswith("shlex.") or part.format_spec is not None
                    unquoted += [f"{path.name}: {value}"] if _PASTED.search(said) and not is_safe else []
                said += str(part.value) if isinstance(part, ast.Constant) else "x"
    assert unquoted == []
    with pytest.raises(InputError, match=r"--set task='gym:a:B;\$\(id\)', or .*=\'gym:a:B;"):
        require_trusted_task("gym:a:B;$(id)", "Run 'first' plays", [])


def test_a_character_that_the_output_cannot_encode_ends_no_command(tmp_path: Path) -> None:
    environment = eigen_environment(tmp_path, PYTHONIOENCODING="ascii:strict")
    ended = run_eigen(["runs", "--store", "rüns→"], environment=environment, folder=tmp_path, code=0)
    assert "There are no runs in r\\xfcns\\u2192." in ended.stdout
