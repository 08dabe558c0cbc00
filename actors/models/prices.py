"""What a model's answer costs, from the price list of the package ``genai-prices``.

The list comes with the package: nothing is downloaded and nothing runs in the background. It is
an extra (``motet[prices]``), since it needs packages that only SDKs need otherwise. Without it,
and for every model, server or figure that it does not know, the price is unknown: never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeAlias, runtime_checkable

import trio
from msgspec.structs import replace

from motet.protocols.models import Usage

Calculate: TypeAlias = Callable[[str, Usage, str | None], float | None]

PROVIDER_IDS = {"bedrock": "aws", "gemini": "google", "moonshot": "moonshotai", "xai": "x-ai"}
"""Providers that the list knows by another name than people write before the colon."""


@runtime_checkable
class Billed(Protocol):
    """A model that says where it is billed. ``base_url`` None: at the provider of its name."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str | None: ...


def price(model_name: str, usage: Usage, base_url: str | None = None) -> float | None:
    """US dollars for what one answer of ``provider:model`` used; None when that is unknown.

    ``base_url``: the server that was asked in place of the provider's own; a local one has no
    price. The first use loads the list, which takes a tenth of a second.
    """
    return _calculation()(model_name, usage, base_url)


async def priced(usage: Usage, model: Billed) -> Usage:
    """With the cost that the provider gave, else the list's. Loads the list in a thread.

    Cancelled while that goes on: waits for it, then is cancelled.
    """
    if not usage.unpriced:
        return usage
    if not _calculation.cache_info().currsize:
        await trio.to_thread.run_sync(_calculation)
    return replace(usage, cost=price(model.name, usage, model.base_url))


@cache
def _calculation() -> Calculate:
    try:
        import genai_prices
    except ModuleNotFoundError:
        return lambda _model, _usage, _url: None

    def calculate(model_name: str, usage: Usage, base_url: str | None) -> float | None:
        provider, _, model = model_name.removeprefix("pydantic_ai:").partition(":")
        used = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            if base_url is not None:
                found = genai_prices.calc_price(used, model, provider_api_url=base_url)
            else:
                known = PROVIDER_IDS.get(provider, provider)
                found = genai_prices.calc_price(used, model, provider_id=known)
        except (LookupError, ValueError):
            return None  # an unknown server or model, or figures that contradict each other
        return float(found.total_price)

    return calculate
