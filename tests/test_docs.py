"""What README and docs/ show works as it is written there, what they link to exists, and so do commands in messages."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cli_cases import check_command, check_mention, commands_in
from flow_cases import eigen_environment, run_eigen
from known import known
from training_cases import advance, small_state

from docs.site_hooks import OUTSIDE, SETTINGS_MARK, settings_tables, with_links
from eigen_core.checkpoint.export import write_champion
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config.explain import settings
from eigen_core.config.loading import config_from_values
from eigen_core.generation import snapshot
from eigen_core.runs.handle import require_trusted_task
from flows.server import flow_runs as names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *(ROOT / path for path in OUTSIDE if path.endswith(".md"))])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").replace(SETTINGS_MARK, settings_tables())


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in a language; "": lines for a shell, and output of commands."""
    return [code for found, code in _FENCE.findall(text_of(page)) if found == language]


def python_example(page: Path, containing: str) -> str:
    (example,) = (code for code in blocks(page, "python") if containing in code)
    return example


def anchors(page: Path) -> set[str]:
    """Headings of a page, as GitHub and the site spell them in links."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_to_files_and_headings_that_exist_here_and_on_the_site(page: Path) -> None:
    def check(path: str) -> str:
        linked = (page.parent / path).resolve()
        assert linked.exists(), path
        # The site has it, too.
        assert DOCS in linked.parents or linked.relative_to(ROOT).as_posix() in OUTSIDE, path
        return path

    with_links(text_of(page), check)
    for path, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#([^)\s]+)\)", text_of(page)):
        assert anchor in anchors(page.parent / path if path else page), f"{path}#{anchor}"


def test_the_site_publishes_no_code_and_can_be_searched_without_a_network() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    # mypy needs it, and mkdocs matches by it.
    excluded = pytest.importorskip("pathspec").GitIgnoreSpec.from_lines(site["exclude_docs"].splitlines())
    paths = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()]
    # Loading the hooks of the site compiles them.
    paths.append("__pycache__/site_hooks.cpython-311.pyc")
    assert {Path(path).suffix for path in paths if not excluded.match_file(path)} == {".md", ".css", ".js", ".png"}
    assert {"search", "offline"} <= {plugin for plugin in site["plugins"] if isinstance(plugin, str)}
    scripts = site["extra"]["polyfills"]
    # The plugin `offline` adds one from another host where none is given.
    assert ["iframe-worker" in script for script in scripts] == [True]
    assert all((DOCS / script).exists() for script in scripts)


@each_page
def test_commands_in_code_blocks_can_be_parsed(page: Path) -> None:
    for line in "\n".join(blocks(page, "")).splitlines():
        for command in commands_in(line):
            check_command(command)


@each_page
def test_commands_and_targets_that_are_named_exist(page: Path) -> None:
    for mention in re.findall(r"`(eigen [a-z][^`]*)`", text_of(page)):
        check_mention(mention)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text_of(page), flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, target


def test_every_command_is_in_the_docs() -> None:
    listed = subprocess.run([sys.executable, "-m", "flows.cli", "--help"], capture_output=True, text=True).stdout
    commands = set(re.findall(r"^[│\s]*([a-z]+)\s{2,}[A-Z]", listed, flags=re.MULTILINE)) - {"deploy"}
    assert {"train", "up"} <= commands
    shown = "".join(text_of(DOCS / page) for page in ("training.md", "operations.md", "workers.md"))
    assert {command for command in commands if f"\neigen {command}" not in shown} == set()


@each_page
def test_yaml_samples_are_configurations(page: Path) -> None:
    for sample in blocks(page, "yaml"):
        config_from_values(yaml.safe_load(sample))


@each_page
def test_python_samples_import_what_exists(page: Path) -> None:
    for sample in blocks(page, "python"):
        imports: list[ast.stmt] = [
            node for node in ast.parse(sample).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        exec(compile(ast.Module(imports, type_ignores=[]), str(page), "exec"), {})


def test_the_python_interface_names_what_exists() -> None:
    names = re.findall(r"^::: (\S+)$", text_of(DOCS / "api.md"), flags=re.MULTILINE)
    assert names
    for name in names:
        module, _, member = name.rpartition(".")
        assert getattr(importlib.import_module(module), member).__doc__, name


def test_the_table_of_settings_has_each_of_them_with_the_values_of_presets() -> None:
    rows = [line.split(" | ") for line in settings_tables().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{key}`" for key in settings()]
    assert {len(row) for row in rows} == {4}
    (window,) = (row[1] for row in rows if row[0] == "| `market.window`")
    assert window == "`64`<br>eigen2: `504`<br>eigen2-classic: `504`"


def test_every_name_of_an_end_is_explained() -> None:
    operations = text_of(DOCS / "operations.md")
    ends = [value for name, value in vars(names).items() if name.endswith("_NAME")]
    assert len(ends) >= 7
    assert [end for end in ends if f"\n| {end} | " not in operations] == []


def test_the_licences_of_all_dependencies_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    listed = re.findall(r"^\| ([\w-]+) \| (?!---)(?!licence)", text_of(ROOT / "THIRD_PARTY.md"), flags=re.MULTILINE)
    assert listed == [re.split(r"[\[<>=]", requirement)[0] for requirement in requirements]


def test_a_champion_is_read_as_two_pages_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = python_example(DOCS / "training.md", "read_champion")
    assert len([line for line in short.splitlines() if line]) == 3
    state = advance(small_state(), 1)
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state), state.config.model_dump(mode="json"))
    monkeypatch.chdir(tmp_path)
    long = python_example(DOCS / "file-format.md", "safe_open")
    for file, example in (("c.safetensors", short), ("out.safetensors", long)):
        write_champion(directory.contents, tmp_path / file)
        found: dict[str, Any] = {}
        exec(example, found)
        assert torch.equal(found["weights"], known(state.champion).weights.cpu())
        assert found["config"] == state.config.model_dump(mode="json")


@pytest.mark.thorough
def test_the_python_example_runs_in_a_dozen_lines_without_prefect(tmp_path: Path) -> None:
    example = python_example(DOCS / "training.md", "start_training")
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    script = example + "\nimport sys\nassert 'prefect' not in sys.modules\n"
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "best_fitness" in ended.stdout
    assert len(re.findall(r"^\d+ ", ended.stdout, flags=re.MULTILINE)) == 3


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
