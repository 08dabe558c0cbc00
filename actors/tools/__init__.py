"""Large and binary results are stored, models see a head and read on in pages (seed 000)."""

from __future__ import annotations


# Tools: how they are made, described, checked and executed.
