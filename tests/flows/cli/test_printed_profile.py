"""What `eigen train --profile` prints of a profile."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from eigen_core.machine.profiling import OperatorTime, Profile
from flows.cli.training import print_profile


def printed(*operators: OperatorTime) -> list[str]:
    shown = StringIO()
    print_profile(Console(file=shown), Profile(Path("folder"), 2, list(operators)))
    return shown.getvalue().splitlines()


def test_seconds_of_the_gpu_are_printed_where_there_is_one() -> None:
    assert printed(
        OperatorTime("train", "aten::bmm", 1_000, 1.0, 0.25, 6.0),
        OperatorTime("train", "aten::mul", 10, 3.0, 0.75, 2.0),
        OperatorTime("evolve", "aten::sort", 1, 0.5, 1.0, 0.0),
    ) == [
        "Profile of generation 2, GPU seconds of operators: folder",
        "  train       75 %    6.000 s    1,000 x aten::bmm",
        "  train       25 %    2.000 s       10 x aten::mul",
        "  evolve       0 %    0.000 s        1 x aten::sort",
    ]


def test_else_those_of_the_processor() -> None:
    assert printed(
        OperatorTime("train", "aten::mul", 10, 3.0, 0.75, 0.0),
        OperatorTime("train", "aten::bmm", 1_000, 1.0, 0.25, 0.0),
    ) == [
        "Profile of generation 2, CPU seconds of operators: folder",
        "  train       75 %    3.000 s       10 x aten::mul",
        "  train       25 %    1.000 s    1,000 x aten::bmm",
    ]
