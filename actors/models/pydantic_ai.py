"""Every other model: those that pydantic-ai speaks to, asked without its agents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import attrs
import trio

from motet.actors.models.adapter import Adapter
from motet.actors.models.pydantic_ai_wire import (
    End,
    PydanticAIReader,
    usage_of,
    wire_messages,
    wire_parameters,
    wire_settings,
)
from motet.actors.models.sdk import Deadlines
from motet.protocols.errors import ConfigError, MissingExtra
from motet.protocols.models import ModelFailure, ModelRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as SdkModel
    from pydantic_ai.models import StreamedResponse

PROVIDER = "pydantic_ai"


class PydanticAIModel(Adapter["_Client"]):
    """A model of any provider that pydantic-ai knows: ``groq:llama-3.3-70b-versatile``.

    Args:
        name: the provider's name at pydantic-ai, a colon, and its name of the model.
        base_url: another server of that provider's API; as pydantic-ai says otherwise.
        api_key: the key; the provider's own variable otherwise.
        deadlines: how long the model may be silent.

    Raises ``ConfigError`` for a name without a colon. Failures and cancellation are those of
    :class:`motet.actors.models.openai.OpenAIModel`; ``ConfigError`` names a package that the
    provider needs. Bedrock waits in threads that a cancellation leaves behind.
    """

    provider: ClassVar = PROVIDER

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
    ):
        provider, colon, model = name.partition(":")
        if not (provider and colon and model):
            raise ConfigError(f"write {PROVIDER}:<provider>:<model>, not {PROVIDER}:{name}")
        self._provider = provider
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines)

    def _reader(self) -> PydanticAIReader:
        return PydanticAIReader()

    def _make_client(self) -> _Client:
        try:
            from pydantic_ai.models import infer_model
            from pydantic_ai.providers import Provider, infer_provider_class
        except ModuleNotFoundError as error:
            raise MissingExtra(PROVIDER, f"the model {self.name!r}") from error

        def provider(name: str) -> Provider[object]:
            given = {"base_url": self._base_url, "api_key": self._api_key}
            try:
                return infer_provider_class(name)(**{k: v for k, v in given.items() if v})
            except TypeError as error:
                raise ConfigError(f"{name} takes no base_url or api_key: {error}") from error

        return _Client(lambda name: made(lambda: infer_model(name, provider)))

    async def _create(self, request: ModelRequest) -> _Stream:
        client = await self._client.get()
        name = request.model.removeprefix(f"{PROVIDER}:") or self._model
        if ":" not in name:
            name = f"{self._provider}:{name}"
        from pydantic_ai.direct import model_request_stream

        asked = model_request_stream(
            await client.model(name),
            wire_messages(request),
            model_settings=wire_settings(request),
            model_request_parameters=wire_parameters(request),
        )
        return _Stream(asked, await asked.__aenter__())


def made(make: Callable[[], SdkModel]) -> SdkModel:
    """A model of pydantic-ai. What it says of a wrong name or key is said as we say it."""
    from pydantic_ai.exceptions import UserError

    try:
        return make()
    except ImportError as error:
        raise ConfigError(" ".join(str(error).split())) from error
    except (UserError, ValueError) as error:
        kind = "auth" if "API_KEY" in str(error) else "bad_request"
        raise ModelFailure(" ".join(str(error).split()), kind=kind) from error


@attrs.define
class _Client:
    """The models of pydantic-ai that were asked, each with its connections."""

    _make: Callable[[str], SdkModel]
    _models: dict[str, SdkModel] = attrs.field(factory=dict[str, "SdkModel"], init=False)

    async def model(self, name: str) -> SdkModel:
        """Made on first use in a thread: it may have to import an SDK."""
        if name not in self._models:
            made = await trio.to_thread.run_sync(self._make, name)
            self._models.setdefault(name, made)
        return self._models[name]

    async def close(self) -> None:
        for model in self._models.values():
            async with model:  # who enters a model owns its connections, and closes them
                pass


@attrs.define
class _Stream:
    """The events of one response, and at their end what is known of it as a whole."""

    _asked: AbstractAsyncContextManager[StreamedResponse]
    _response: StreamedResponse
    _ended: bool = attrs.field(default=False, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._asked.__aexit__(None, None, None)

    async def __anext__(self) -> object:
        if self._ended:
            raise StopAsyncIteration
        try:
            return await anext(self._response.__aiter__())
        except StopAsyncIteration:
            self._ended = True
            return End(reason_of(self._response), usage_of(self._response.usage))


def reason_of(response: StreamedResponse) -> str | None:
    """Why it ended; None when the provider did not say so, and the stream was cut.

    For some providers pydantic-ai takes a missing reason for a "stop"; their own word for it is
    missing then, too.
    """
    details, reason = response.provider_details, response.finish_reason
    if details is not None and "finish_reason" not in details and reason == "stop":
        return None
    return reason or ("other" if details and "finish_reason" in details else None)
