"""Programs of users, models and faults: as data, drawn, played, printed and kept in files.

Reading order: ``program`` and ``acts`` (what a program is), ``drawing`` and ``lines`` (how one is
drawn), ``target``, ``stage`` and ``play`` (how it is played), ``printing`` and ``cases``.
"""
