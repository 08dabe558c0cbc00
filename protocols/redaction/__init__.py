"""Redaction of secrets and personal data, before a text is stored, sent or logged. Pure.

Doors: ``redact`` (texts, values and streams), ``own`` (rules of a configuration).
"""
