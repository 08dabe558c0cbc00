"""Models on this machine, behind the chat completions API of an Ollama server.

Its own Python client is not used: it checks the schemas of tools against a model of its own, and
loses what that does not have (references, alternatives, objects inside of objects).
"""

from __future__ import annotations

import os
from typing import ClassVar

from motet.actors.models.openai import OpenAIModel
from motet.actors.models.sdk import Deadlines
from motet.actors.models.variables import OLLAMA_KEY, OLLAMA_URL
from motet.protocols.models import OutputSchema

LOCAL = "http://127.0.0.1:11434"
LOADING = Deadlines(first_token=300.0)
"""The first request of a model waits until it is in memory."""


class OllamaModel(OpenAIModel):
    """A model of an Ollama server, ``llama3.2``. It needs no key, and the package of OpenAI.

    Args:
        name: its name there, ``llama3.2`` or ``qwen3:8b``.
        base_url: the server; the variable ``OLLAMA_HOST`` otherwise, else this machine. A URL
            without a path is completed by ``/v1``.
        api_key: for a server behind a key; the variable ``OLLAMA_API_KEY`` otherwise.
        deadlines: how long the model may be silent; 300 s for the first token by default.

    How much of a conversation the model sees is set at the server (``OLLAMA_CONTEXT_LENGTH``);
    what is longer it cuts silently, so that the agent's own window must not be larger.
    """

    provider: ClassVar = "ollama"
    key_variable: ClassVar = OLLAMA_KEY

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines or LOADING)

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """Not beside tools, which the form would keep the model from calling.

        See :class:`motet.protocols.models.NativeOutput`.
        """
        return not tools

    @property
    def base_url(self) -> str:
        """The server that is asked."""
        return server_url(self._base_url or os.environ.get(OLLAMA_URL) or LOCAL)


def server_url(host: str) -> str:
    """The address of the API on a host that is named as Ollama's own programs name it.

    ``0.0.0.0``, an address to listen on, is this machine.
    """
    scheme, separator, rest = host.rpartition("://")
    address, slash, path = rest.rstrip("/").partition("/")
    if not separator:
        bare = ":" not in address or address.endswith("]")
        address = f"{address}:11434" if bare else address
    address = address.replace("0.0.0.0", "127.0.0.1", 1)
    return (
        f"{scheme or 'http'}://{address}{slash}{path}"
        if path
        else (f"{scheme or 'http'}://{address}/v1")
    )
