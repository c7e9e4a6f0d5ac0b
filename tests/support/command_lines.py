"""Reads lines for a shell as the command line `eigen` would, without running anything."""

import re
import shlex
from pathlib import Path

import typer
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli.app import app

_EIGEN = re.compile(r"(?:^|(?<=[\s/]))eigen (?=[a-z])(?:[^;|&)']|'[^']*')*")


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
