"""Hooks of the site (mkdocs.yml): pages from outside of docs/, links between them, and the table of all settings."""

import os
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigen_core.config import VARIANTS, Config, preset_values
from eigen_core.config.explain import Setting, flatten, settings
from eigen_core.config.model import PRESET_NAMES

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THIRD_PARTY.md",
    "benchmarks/RESULTS.md",
    "benchmarks/learning/learning.png",
    "benchmarks/learning/learners.png",
    "benchmarks/learning/learningportfolio.png",
    "benchmarks/trust.png",
    "benchmarks/soak.png",
    "deployments/RUNPOD.md",
    "deployments/container/Containerfile",
    "deployments/systemd/eigen-server.service",
    "deployments/systemd/eigen-worker.service",
    "eigen_core/checkpoint/manifest.schema.json",
    "eigen_core/market/data/README.md",
)
"""Files of the repository outside of docs/ that the site contains, under their paths."""

SETTINGS_MARK = "<!-- settings -->"

_FENCED = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)((?:#[^)\s]*)?)(?=\))")


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the files from outside of docs/ to the site."""
    from mkdocs.structure.files import File

    for path in OUTSIDE:
        files.append(File.generated(config, _site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: "Page", config: "MkDocsConfig", files: "Files") -> str:  # noqa: ARG001 - mkdocs' signature
    """Insert the settings, and let links lead to where the site has the files that the repository's links name."""
    source = Path(str(page.file.abs_src_path))
    folder = os.path.dirname(page.file.src_uri)

    def link_in_site(path: str) -> str:
        target = os.path.relpath(source.parent / path, ROOT)
        return os.path.relpath(_site_path(target), folder or ".")

    return with_links(markdown.replace(SETTINGS_MARK, settings_tables()), link_in_site)


def with_links(markdown: str, changed: Callable[[str], str]) -> str:
    """Return Markdown with the path of each relative link changed; code blocks stay as they are."""
    parts = _FENCED.split(markdown)
    # Every second part is a code block.
    parts[::2] = [_LINK.sub(lambda link: changed(link[1]) + link[2], part) for part in parts[::2]]
    return "".join(parts)


def _site_path(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def settings_tables() -> str:
    """Return a heading and a table of settings for each section of the configuration, as Markdown."""
    presets = {name: flatten(preset_values(name)) for name in PRESET_NAMES}
    parts = ["A value of a preset is given where it is not the default."]
    for section, group in groupby(settings().values(), key=lambda setting: setting.key.rpartition(".")[0]):
        parts += ["", f"### {section or 'Run'}", "", *_section_text(section)]
        parts += ["| setting | default | accepts | meaning |", "| --- | --- | --- | --- |"]
        parts += [_row(setting, presets) for setting in group]
    return "\n".join(parts)


def _section_text(section: str) -> list[str]:
    documented: Any = Config
    for name in section.split(".") if section else ():
        documented = VARIANTS[name].common if name in VARIANTS else documented.model_fields[name].annotation
    return [str(documented.__doc__), ""]


def _row(setting: Setting, presets: dict[str, dict[str, Any]]) -> str:
    values = {name: given[setting.key] for name, given in presets.items() if setting.key in given}
    differing = [f"{name}: {_code(value)}" for name, value in values.items() if value != setting.default]
    with_default = {name: settings(name)[setting.key].default for name in setting.variants}
    differing += [f"{name}: {_code(value)}" for name, value in with_default.items() if value != setting.default]
    default = "<br>".join([_code(setting.default), *(differing if setting.key != "preset" else ())])
    unit = f" Unit: {setting.unit}." if setting.unit else ""
    variants = f" With {', '.join(f'`{name}`' for name in setting.variants)}." if setting.variants else ""
    return f"| `{setting.key}` | {default} | {setting.accepts} | {setting.meaning}{unit}{variants} |"


def _code(value: object) -> str:
    if value is None or value in ((), []):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"
