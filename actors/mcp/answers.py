"""What a server answered to a call, as a value for the one rule of results.

Texts alone become one text; anything else a list of parts in which binary is where that rule looks
for it, so that images and files are stored and noted, never shown. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.mcp import McpAnswer


def answer_of(result: Mapping[str, object]) -> McpAnswer:
    """The answer in a ``tools/call`` result as it stands on the wire."""
    content = result.get("content")
    blocks = cast("Sequence[object]", content) if isinstance(content, list) else ()
    parts = [_part(cast(JsonObject, block)) for block in blocks if isinstance(block, dict)]
    structured = result.get("structuredContent")
    if structured is not None and not _told(parts, structured):
        parts.append(structured)
    return McpAnswer(_joined(parts), failed=result.get("isError") is True)


def _joined(parts: list[object]) -> object:
    if len(parts) == 1:
        return parts[0]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts


def _part(block: JsonObject) -> object:
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _resource(cast(JsonObject, resource))
    return {key: value for key, value in block.items() if key not in ("_meta", "annotations")}


def _resource(resource: JsonObject) -> object:
    """Its text under its address; its bytes with their type, where binary is looked for."""
    text = resource.get("text")
    if isinstance(text, str):
        return f"[{resource.get('uri', 'resource')}]\n{text}"
    shown = {key: value for key, value in resource.items() if key != "_meta"}
    return {"mimeType": "application/octet-stream", **shown}


def _told(parts: Sequence[object], structured: object) -> bool:
    """Whether a text says the same: servers repeat what is structured for older clients."""
    return any(_says(part, structured) for part in parts if isinstance(part, str))


def _says(text: str, structured: object) -> bool:
    try:
        said: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        said = text
    if said == structured:
        return True
    if not isinstance(structured, dict):
        return False
    # A result that is no object travels as {"result": it}.
    fields = cast(JsonObject, structured)
    return list(fields) == ["result"] and fields["result"] in (said, text)
