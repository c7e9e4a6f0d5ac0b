"""What can be wrong with the files of a run, as values and as errors."""

from dataclasses import dataclass

from eigen_core.errors import InputError


@dataclass(frozen=True)
class Damage:
    """What is wrong with one part of a run.

    Attributes:
        generation: the generation that needs it; None: all of them.
        file: what it is: "population.safetensors", "replay shard 11600", "manifest", "config.json".
        what: the rest of a sentence that starts with the file.
        path: where it is stored, relative to the run's folder.
    """

    generation: int | None
    file: str
    what: str
    path: str

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path != self.file else ""
        generation = "" if self.generation is None else f"generation {self.generation}: "
        return f"{generation}{self.file} {self.what}{where}"


class DamagedFileError(ValueError):
    """A file is missing or does not hold what it should. The message is the rest of a sentence that starts with it."""


class UnfitSnapshotError(InputError):
    """A snapshot is whole, but no run with this configuration can have left it.

    Attributes:
        file: which part of it: "state.json", "replay".
        what: the rest of a sentence that starts with the part.
    """

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file} {what}.")
        self.file = file
        self.what = what


class DamagedGenerationError(InputError):
    """A generation is not what its manifest says.

    Attributes:
        damages: all that was found.
    """

    def __init__(self, message: str, damages: list[Damage]) -> None:
        super().__init__(message)
        self.damages = damages


def in_words(damages: list[Damage]) -> str:
    """Return the first damages as part of a sentence."""
    shown = "; ".join(str(damage) for damage in damages[:3])
    return shown + (f"; and {len(damages) - 3} more" if len(damages) > 3 else "")
