"""What a sweep or a walk was begun as: it goes on as the same or not at all."""

from collections.abc import Sequence

from eigen_core.config import Config
from eigen_core.config.loading import differing_keys
from eigen_core.errors import InputError
from eigen_core.training.runs import is_changeable


def require_same_definition(what: str, begun: Config, now: Config, options: Sequence[str]) -> None:
    """Refuse to go on with another definition.

    Args:
        what: is continued, for example `Walk 'years'`.
        begun, now: configuration of all its runs; what may change between the generations of a run may change here too,
            but for the number of generations.
        options: what else differs, in words.

    Raises:
        InputError: the definitions differ.
    """
    settings = [key for key in differing_keys(begun, now) if key == "generations" or not is_changeable(key)]
    differing = [*options, *settings]
    if differing:
        raise InputError(
            f"{what} exists and was begun otherwise: {', '.join(differing[:5])} differ{'s' * (len(differing) == 1)}. "
            "Give the same command, or choose another name."
        )
