"""Evaluations of agents: cases, judges, trials, and their reports.

:mod:`motet.testing` has the public names; ``mt.judges`` are the ready-made judges.
"""
