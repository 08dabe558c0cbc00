"""Redaction of secrets and personal data, before a text is stored, sent or logged. Pure.

Door: ``redact``.
"""
