"""Errors: serialized, redacted, classified, summarised, counted. A model sees one line and an id.

Doors: ``describe``, ``classify``, ``log.logger``.
"""
