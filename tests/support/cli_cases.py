"""Commands of Eigen that run in this process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from flows.cli.app import app


def eigen(*arguments: str, code: int | None = None) -> Result:
    """Run a command, which must end with this exit code if one is given."""
    ended = CliRunner().invoke(app, list(arguments))
    assert code in (None, ended.exit_code), ended.output
    return ended


def document(*arguments: str, code: int = 0) -> Any:
    """Run a command with `--json`; return the document, which is all that it prints."""
    ended = eigen(*arguments, "--json", code=code)
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def refused(*arguments: str) -> str:
    """Run a command that must be refused with one line, and return that line."""
    ended = eigen(*arguments, code=2)
    assert ended.stdout == ""
    assert ended.stderr.startswith("eigen: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr.strip()
