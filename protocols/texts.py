"""Texts as UTF-8 can hold them. Pure."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: surrogate pairs joined, lone surrogates replaced."""
    if text.isascii():  # no copy, which matters for megabytes
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
