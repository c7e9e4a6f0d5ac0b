"""Names of objects, and what both kinds of stores ask of them."""

HIDDEN = "."
"""A part of a name that begins so is the store's own: a file that is being written, a test whether one can write."""


def checked_name(name: str) -> str:
    """Return `name` if an object may be called so.

    Raises:
        ValueError: it has an empty part, a part that begins with a dot, a backslash or a control character.
    """
    if not all(map(_is_fine, name.split("/"))):
        raise ValueError(f"not a name of an object in a store: {name[:200]!r}")
    return name


def checked_prefix(prefix: str) -> str:
    """Return `prefix` if it is "" or a folder's name with its slash.

    Raises:
        ValueError: it is something else.
    """
    if prefix and (not prefix.endswith("/") or not all(map(_is_fine, prefix[:-1].split("/")))):
        raise ValueError(f"not the name of a folder in a store with its slash: {prefix[:200]!r}")
    return prefix


def is_hidden(name: str) -> bool:
    """Whether a name found in a store is the store's own or nothing that `checked_name` lets pass."""
    return not all(map(_is_fine, name.split("/")))


def _is_fine(part: str) -> bool:
    return part != "" and not part.startswith(HIDDEN) and part.isprintable() and "\\" not in part
