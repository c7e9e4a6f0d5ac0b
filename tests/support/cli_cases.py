"""Commands of Eigen that run in this process, or are read as its command line would, without running anything."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from flows.cli.app import app

_EIGEN = re.compile(r"(?:^|(?<=[\s/]))eigen (?=[a-z])(?:[^;|&)']|'[^']*')*")
# Starting servers and trainings of any size is not what these tests are for: that such a command exists is enough.
FOLLOWED = ("resume", "presets", "verify", "runs", "backtest", "report")


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


def follow_advice(arguments: Sequence[str], said: str) -> int:
    """Follow what a refusal of `arguments` tells a user to type; return how many commands and settings it named.

    Each command in backticks must exist with its options, and those of `FOLLOWED` are run; `--set` is added to the
    refused command. What is followed must be accepted, or refused for another reason.
    """
    quoted = re.findall(r"`(eigen [a-z][^`]*|--set [^`]*)`", said)
    bare = re.findall(r"--set [\w.]+=(?:'[^']*'|[^\s,`]+)", re.sub(r"`[^`]*`", "", said))
    for words in (shlex.split(each) for each in (*quoted, *bare)):
        if words[0] == "eigen":
            check_mention(shlex.join(words))
            if words[1] not in FOLLOWED:
                continue
        again = eigen(*words[1:]) if words[0] == "eigen" else eigen(*arguments, *words)
        assert again.exit_code in (0, 1, 2, 3), (words, again.exception)
        assert said != again.stderr, words
    return len(quoted) + len(bare)


def check_command(line: str) -> None:
    """Parse a line that begins with the command `eigen`, or a path to it; may raise click's `UsageError`."""
    words, group = shlex.split(line, comments=True), _group()
    assert Path(words[0]).name == "eigen"
    with typer.Context(group) as context:
        name, command, arguments = group.resolve_command(context, words[1:])
    assert command is not None
    command.make_context(name, list(arguments))


def check_mention(text: str) -> None:
    words = shlex.split(text)
    command = _group().commands.get(words[1])
    assert command is not None, f"there is no command eigen {words[1]}"
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words[2:] if word.startswith("-")} <= options, text


def commands_in(line: str) -> list[str]:
    """Return the calls of `eigen` in a line for a shell; comments are left out."""
    return [found.strip() for found in _EIGEN.findall(re.sub(r"(?:^|\s)#.*", "", line))]


def _group() -> TyperGroup:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group
