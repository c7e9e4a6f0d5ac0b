"""Passwords in URLs: settings are kept in stores, pages and reports, so none may be in them."""

import re

_SCHEME = r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://"
# Before an at sign; a password may itself have slashes, which a port has not.
_USER = rf"{_SCHEME}(?:[^/?#\s]*|[^@/:\s]*:(?!\d+(?:/|$))[^@\s]*)@"
_SECRET = r"(?:password|passwd|pwd|token|secret|signature|sig|credentials?|api_?key|access_?key)"
_PARAMETER = rf"{_SCHEME}\S*[?&;#](?:[a-z0-9_-]*[_-])?{_SECRET}="
_LONGEST = 4_096
"""Longer texts are no settings; the time to search grows with the square of their length."""
_CREDENTIALS = re.compile(f"{_USER}|{_PARAMETER}", re.IGNORECASE)
_HIDDEN = re.compile(rf"({_SCHEME})(?:[^/?#\s]*|[^@/:\s]*:(?!\d+(?:/|\s|$))[^@\s]*)@", re.IGNORECASE)
_HIDDEN_PARAMETER = re.compile(rf"([?&;#](?:[a-z0-9_-]*[_-])?{_SECRET}=)[^&;#\s]*", re.IGNORECASE)


def has_credentials(text: str) -> bool:
    """Whether a text has a URL with a user, a password, or a parameter that is a secret by its name."""
    return "://" in text and _CREDENTIALS.search(text[:_LONGEST]) is not None


def without_credentials(text: str) -> str:
    """Return a text with dots in place of users, passwords and secret parameters of its URLs."""
    return _HIDDEN_PARAMETER.sub(r"\1...", _HIDDEN.sub(r"\1...@", text))
