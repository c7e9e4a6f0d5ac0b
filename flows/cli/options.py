"""Options and arguments that several commands share."""

from typing import Annotated

import typer

Store = Annotated[
    str | None,
    typer.Option(
        help="Where runs are kept: a folder, or gs://bucket/prefix. EIGEN_STORE sets it too.",
        show_default="runs",
        metavar="URL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", metavar="")]
Device = Annotated[
    str | None, typer.Option(help="Where tensors live: auto, cpu or cuda.", show_default="auto", metavar="KIND")
]
Preset = Annotated[str | None, typer.Option(help="Preset to start from.", show_default="quickstart", metavar="NAME")]
Generations = Annotated[str | None, typer.Option(help="Generations to train.", metavar="N")]
Seed = Annotated[str | None, typer.Option(help="Seed of every random draw.", metavar="N")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting; `eigen presets NAME` lists them. May be repeated.", metavar="KEY=VALUE"),
]
Data = Annotated[str | None, typer.Option(help="Price file or folder.", show_default="bundled prices", metavar="PATH")]
OwnData = Annotated[
    str | None,
    typer.Option(
        "--data", help="Where its prices are on this machine.", show_default="where they were", metavar="PATH"
    ),
]
RunName = Annotated[str, typer.Argument(help="Name of the run.", metavar="NAME")]
