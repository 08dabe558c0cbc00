"""Runs files of test vectors against the code: ``python -m tests.vectors FILE [--area A]``.

A file maps areas to cases of ``name``, ``input``, ``expect`` and ``note``. One adapter per area
turns an input into facts that the code has shown; ``expect`` is compared with them by its own
form. Where the specification decides otherwise than the vector, a rule in ``deviations`` says so.
"""
