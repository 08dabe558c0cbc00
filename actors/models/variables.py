"""The environment variables that say how providers of models are reached."""

from __future__ import annotations

OPENAI_KEY = "OPENAI_API_KEY"
OPENAI_URL = "OPENAI_BASE_URL"
ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
ANTHROPIC_URL = "ANTHROPIC_BASE_URL"
GOOGLE_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""The first one that is set is taken."""
GOOGLE_URL = "GOOGLE_GEMINI_BASE_URL"
OLLAMA_KEY = "OLLAMA_API_KEY"
OLLAMA_URL = "OLLAMA_HOST"
