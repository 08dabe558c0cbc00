"""Transcripts: their grammar, and what a model is sent of them. Pure.

Doors: ``grammar.close_calls``, ``history``, ``window.ContextWindow``.
"""
