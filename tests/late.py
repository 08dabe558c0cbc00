"""Modules of SDKs that are imported when a test first uses them, and not when it is collected.

Every process of the tests collects all of them, and runs a part. The SDKs are two thirds of all
modules that the tests import.
"""

from __future__ import annotations

import importlib

import attrs


@attrs.frozen
class Late:
    """Stands for the module ``name``. Type checkers are shown the import itself."""

    name: str

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("_"):  # pytest asks each object of a module for such
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.name), attribute)
