"""Errors: serialized, redacted, classified, summarised, counted. A model sees one line and an id.

Doors: ``capture``, ``classify``, ``log.logger``.
"""
