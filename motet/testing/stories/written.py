"""Records whose ``repr`` is the Python that makes them, as ``motet.testing`` is imported in tests.

Invariant: what stands in a printed test makes an equal record.
"""

from __future__ import annotations

import msgspec
from msgspec import NODEFAULT

from motet.testing.steps import written

__all__ = ["Written"]


class Written(msgspec.Struct, frozen=True):
    """Root of steps and mishaps: ``mt.Send('ann', 'hello', key='k')``."""

    def __repr__(self) -> str:
        given: list[str] = []
        for field in msgspec.structs.fields(self):
            value: object = getattr(self, field.name)
            if field.default is NODEFAULT:
                given.append(written(value))
            elif value != field.default:
                given.append(f"{field.name}={written(value)}")
        return f"mt.{type(self).__name__}({', '.join(given)})"
