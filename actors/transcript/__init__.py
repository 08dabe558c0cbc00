"""Transcripts: their grammar, what a model is sent of them, and the rules on texts. Pure.

Doors: ``grammar.close_calls``, ``history``, ``window.ContextWindow``, ``sanitize.sanitize``.
"""
