"""Nothing in our packages imports or calls a loader that can run what it loads."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["eigen_core", "tasks", "flows"]

FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "pickle5",
    "dill",
    "cloudpickle",
    "shelve",
    "joblib",
    "marshal",
    "jsonpickle",
    "hickle",
}
FORBIDDEN_NAMES = {
    "torch.load",
    "torch.serialization.load",
    "torch.jit.load",
    "torch.export.load",
    "torch.package.PackageImporter",
    "pandas.read_pickle",
    "numpy.core.multiarray._reconstruct",
    "yaml.full_load",
    "yaml.full_load_all",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "yaml.Loader",
    "yaml.CLoader",
    "yaml.FullLoader",
    "yaml.CFullLoader",
    "yaml.UnsafeLoader",
    "yaml.CUnsafeLoader",
    "eval",
    "exec",
}


def executable_loading(source: str) -> list[str]:
    """Return what in a module's source can run what it loads, as "line: what"."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    found: list[str] = []

    def name_of(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{name_of(node.value)}.{node.attr}"
        return "?"

    def check_module(line: int, module: str) -> None:
        if not FORBIDDEN_MODULES.isdisjoint(module.split(".")):
            found.append(f"{line}: import {module}")

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                check_module(node.lineno, name.name)
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                whole = f"{node.module or ''}.{name.name}"
                check_module(node.lineno, whole)
                aliases[name.asname or name.name] = whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and name_of(node) in FORBIDDEN_NAMES:
            found.append(f"{node.lineno}: {name_of(node)}")
        if isinstance(node, ast.Attribute) and node.attr in {"read_pickle", "to_pickle"}:
            found.append(f"{node.lineno}: .{node.attr}")
        if isinstance(node, ast.Call):
            called = name_of(node.func)
            if called in {"importlib.import_module", "__import__", "builtins.__import__"}:
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        check_module(node.lineno, argument.value)
            found += [
                f"{node.lineno}: {keyword.arg}"
                for keyword in node.keywords
                if (keyword.arg == "allow_pickle" and not _is(keyword.value, False))
                or (keyword.arg == "weights_only" and not _is(keyword.value, True))
            ]
    return found


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_our_packages_load_nothing_executable() -> None:
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(modules) > 10
    found = [
        f"{path.relative_to(ROOT)}:{what}"
        for path in modules
        for what in executable_loading(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, cloudpickle as c",
        "from joblib import load",
        "def f():\n    from dill import loads",
        "import shelve",
        "from pandas import io\nimport pandas.io.pickle",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=True)",
        "from torch import load as read\nread('x')",
        "from torch import load\nreader = load",
        "import torch\ntorch.serialization.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "import pandas as pd\npd.read_pickle('x')",
        "frame.to_pickle('x')",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('marshal')",
        "eval(text)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert executable_loading(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.load(file)",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import yaml\nyaml.safe_load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from safetensors.torch import load_file\nload_file('x')",
        "model.eval()\nimport re\nre.compile('x')",
        "'import pickle'  # pickle",
    ],
)
def test_the_search_lets_pass(source: str) -> None:
    assert executable_loading(source) == []
