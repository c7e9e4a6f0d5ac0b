"""Commands of Eigen that run in this process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from flows.cli.app import app


def eigen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def document(*arguments: str, code: int = 0) -> Any:
    """Run a command with `--json`; return the document, which is all that it prints."""
    ended = eigen(*arguments, "--json")
    assert ended.exit_code == code, ended.output
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def refused(*arguments: str) -> str:
    """Run a command that must be refused with one line, and return that line."""
    ended = eigen(*arguments)
    assert ended.exit_code == 2, ended.output
    assert ended.stdout == ""
    assert ended.stderr.startswith("eigen: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr.strip()
