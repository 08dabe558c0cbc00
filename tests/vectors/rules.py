"""A decision of the specification against a vector, as a rule."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tests.vectors.cases import Case, Facts


@attrs.frozen
class Rule:
    """``decided`` quotes the line of the specification; ``applies`` sees the case and the facts."""

    area: str
    decided: str
    applies: Callable[[Case, Facts], bool]
