"""Strict checks of requests, written from each provider's published rules, and nothing of motet.

Each function takes the JSON of a request body and returns the rules it breaks. Where a rule depends
on the model behind an API, the strictest is checked: servers with chat templates want alternating
roles, Mistral ids of nine letters and digits, Bedrock a declaration of each tool that was called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

Json: TypeAlias = Any  # a decoded request body, whose shape is what is checked

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
PARAMETER = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
LETTER_FIRST = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
REFUSED_IN_SCHEMAS = ("anyOf", "oneOf", "allOf", "not", "enum")


def blank(text: object) -> bool:
    return not isinstance(text, str) or not text.strip()


def alternation(roles: list[str], user: tuple[str, ...]) -> Iterator[str]:
    if not roles:
        yield "no messages"
    elif roles[0] not in user:
        yield f"the first role is {roles[0]}"
    elif roles[-1] not in user:
        yield f"the last role is {roles[-1]}"
    for at, (one, other) in enumerate(pairwise(roles)):
        if one == other:
            yield f"messages {at} and {at + 1} are both of the role {one}"


def schema_problems(name: str, schema: Json, pattern: re.Pattern[str] = PROPERTY) -> Iterator[str]:
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        yield f"the schema of {name} is no object"
    if found := [word for word in REFUSED_IN_SCHEMAS if word in schema]:
        yield f"the schema of {name} has {found} at its top"
    for path, part in parts_of(schema, "#"):
        if odd := [key for key in part.get("properties", {}) if not pattern.fullmatch(key)]:
            yield f"the schema of {name} has the properties {odd} at {path}"
        if part.get("type") == "array" and not {"items", "prefixItems"} & part.keys():
            yield f"the schema of {name} has an array without items at {path}"
        if "$ref" in part and not leads_somewhere(part["$ref"], schema):
            yield f"the schema of {name} refers to nothing at {path}: {part['$ref']}"


def parts_of(part: Json, path: str) -> Iterator[tuple[str, Json]]:
    """All schemas in a schema, and where they stand."""
    if not isinstance(part, dict):
        return
    whole = cast("dict[str, Json]", part)
    yield path, whole
    for word, value in whole.items():
        if word in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            for key, one in value.items():
                yield from parts_of(one, f"{path}/{word}/{key}")
        elif word in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for at, one in enumerate(value):
                yield from parts_of(one, f"{path}/{word}/{at}")
        elif word in ("items", "additionalProperties", "not", "if", "then", "else", "contains"):
            yield from parts_of(value, f"{path}/{word}")


def leads_somewhere(reference: str, schema: Json) -> bool:
    at: Json = schema
    for word in unquote(reference).removeprefix("#").split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        try:
            at = cast(Json, at[int(name)] if isinstance(at, list) else at[name])
        except (LookupError, TypeError, ValueError):
            return False
    return True


def unencodable(body: Json) -> Iterator[str]:
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False, default=str).encode()
    except ValueError as error:
        yield f"the body is no JSON in UTF-8: {error}"
    if re.search(r"(?<!\\)\\u0000", json.dumps(body, default=str)):
        yield "a text with a null character"


def openai_problems(body: Json) -> list[str]:
    return list(_openai(body))


def _openai(body: Json) -> Iterator[str]:
    yield from unencodable(body)
    messages = body["messages"]
    if messages and messages[0]["role"] == "system":
        if blank(messages[0]["content"]):
            yield "a blank system prompt"
        messages = messages[1:]
    talk = [one["role"] for one in messages if one["role"] != "tool"]
    if strange := set(talk) - {"user", "assistant"}:
        yield f"roles {strange} in the middle"
    if messages and messages[-1]["role"] not in ("user", "tool"):
        yield "the last message is the assistant's"
    # Between two assistant messages there are results or a user's message; users never meet.
    roles = [
        "user" if one["role"] == "tool" else one["role"]
        for at, one in enumerate(messages)
        if not (at and messages[at - 1]["role"] == "tool" and one["role"] in ("tool", "user"))
    ]
    yield from alternation(roles, ("user",))
    due: list[str] = []
    used: set[str] = set()
    for at, message in enumerate(messages):
        content = message.get("content")
        if message["role"] == "tool":
            if message["tool_call_id"] not in due:
                yield f"message {at}: a result without a call"
            else:
                due.remove(message["tool_call_id"])
            if blank(content):
                yield f"message {at}: a blank result"
            continue
        if due:
            yield f"message {at}: calls {due} have no result"
        due = []
        calls = message.get("tool_calls")
        if calls is not None and not 0 < len(calls) <= 128:
            yield f"message {at}: {len(calls)} calls"
        if content is None and not calls:
            yield f"message {at}: neither content nor calls"
        if content is not None and blank(content):
            yield f"message {at}: blank content"
        for call in calls or ():
            id, function = call["id"], call["function"]
            if not 0 < len(id) <= 40 or id in used:
                yield f"message {at}: the id {id!r}"
            used.add(id)
            due.append(id)
            if not NAME.fullmatch(function["name"]):
                yield f"message {at}: the name {function['name']!r}"
            if not is_object(function["arguments"]):
                yield f"message {at}: the arguments are no object"
    if due:
        yield f"calls {due} have no result"
    tools = body.get("tools")
    if tools is not None:
        yield from _openai_tools(tools)


def is_object(text: object) -> bool:
    try:
        return isinstance(json.loads(str(text)), dict)
    except ValueError:
        return False


def _openai_tools(tools: Json) -> Iterator[str]:
    names = [tool["function"]["name"] for tool in tools]
    if not tools:
        yield "an empty list of tools"
    if len(set(names)) != len(names):
        yield f"two tools of one name: {names}"
    if len(tools) > 128:
        yield f"{len(tools)} tools"
    for tool in tools:
        if not NAME.fullmatch(tool["function"]["name"]):
            yield f"the tool {tool['function']['name']!r}"
        if len(tool["function"]["description"]) > 1024:
            yield f"the description of {tool['function']['name']} is too long"
        yield from schema_problems(tool["function"]["name"], tool["function"]["parameters"])


def anthropic_problems(body: Json) -> list[str]:
    return list(_anthropic(body))


def _anthropic(body: Json) -> Iterator[str]:
    yield from unencodable(body)
    messages = body["messages"]
    yield from alternation([message["role"] for message in messages], ("user",))
    if "system" in body and blank(body["system"]):
        yield "a blank system prompt"
    due: list[str] = []
    used: set[str] = set()
    for at, message in enumerate(messages):
        blocks = message["content"]
        if not blocks:
            yield f"message {at}: no content"
        results = [block for block in blocks if block["type"] == "tool_result"]
        if blocks[: len(results)] != results:
            yield f"message {at}: content before the results"
        if sorted(block["tool_use_id"] for block in results) != sorted(due):
            yield f"message {at}: the results do not match the calls {due}"
        due = []
        for block in blocks:
            yield from (f"message {at}: {problem}" for problem in _block(block, message["role"]))
            if block["type"] == "tool_use":
                if block["id"] in used:
                    yield f"message {at}: the id {block['id']} again"
                used.add(block["id"])
                due.append(block["id"])
    if due:
        yield f"calls {due} have no result"
    tools = body.get("tools", [])
    names = [tool["name"] for tool in tools]
    if used and not tools:
        yield "calls, but no tools"
    if len(set(names)) != len(names):
        yield f"two tools of one name: {names}"
    for tool in tools:
        if not NAME.fullmatch(tool["name"]):
            yield f"the tool {tool['name']!r}"
        yield from schema_problems(tool["name"], tool["input_schema"])


def _block(block: Json, role: str) -> Iterator[str]:
    match block["type"]:
        case "text":
            if blank(block["text"]):
                yield "a blank text"
        case "tool_use":
            if role != "assistant":
                yield f"a call of the {role}"
            if not NAME.fullmatch(block["id"]):
                yield f"the id {block['id']!r}"
            if not NAME.fullmatch(block["name"]):
                yield f"the name {block['name']!r}"
            if not isinstance(block["input"], dict):
                yield "the input is no object"
        case "tool_result":
            if role != "user":
                yield f"a result of the {role}"
            if blank(block["content"]):
                yield "a blank result"
        case other:
            yield f"a block of the type {other!r}"


def google_problems(body: Json) -> list[str]:
    return list(_google(body))


def _google(body: Json) -> Iterator[str]:
    yield from unencodable(body["contents"])
    yield from alternation([content["role"] for content in body["contents"]], ("user",))
    due: list[str] = []
    for at, content in enumerate(body["contents"]):
        parts = content["parts"]
        if not parts:
            yield f"content {at}: no parts"
        results = [part["function_response"] for part in parts if "function_response" in part]
        if [result["name"] for result in results] != due:
            yield f"content {at}: the responses do not match the calls {due}"
        if any(not isinstance(result["response"], dict) for result in results):
            yield f"content {at}: a response that is no object"
        calls = [part["function_call"] for part in parts if "function_call" in part]
        due = [call["name"] for call in calls]
        if calls and content["role"] != "model":
            yield f"content {at}: a call of the user"
        if any("text" in part and blank(part["text"]) for part in parts):
            yield f"content {at}: a blank text"
        for call in calls:
            if not LETTER_FIRST.fullmatch(call["name"]):
                yield f"content {at}: the name {call['name']!r}"
            if not isinstance(call["args"], dict) or depth(call["args"]) > 99:
                yield f"content {at}: the arguments"
    if due:
        yield f"calls {due} have no response"
    for tool in body.get("tools", []):
        if not LETTER_FIRST.fullmatch(tool["name"]):
            yield f"the tool {tool['name']!r}"
        yield from schema_problems(tool["name"], tool["parameters_json_schema"], PARAMETER)


def depth(value: Json) -> int:
    """How deep lists and objects are nested, by the brackets of its text without strings."""
    deepest = level = 0
    for bracket in re.findall(r"[\[{\]}]", re.sub(r'"(\\.|[^"\\])*"', "", json.dumps(value))):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def pydantic_ai_problems(body: Json) -> list[str]:
    return list(_pydantic_ai(body))


def _pydantic_ai(body: Json) -> Iterator[str]:
    yield from unencodable(body)
    yield from alternation([message["kind"] for message in body["messages"]], ("request",))
    due: list[tuple[str, str]] = []
    used: set[str] = set()
    for at, message in enumerate(body["messages"]):
        parts = [part for part in message["parts"] if part["part_kind"] != "system-prompt"]
        if not parts:
            yield f"message {at}: no parts"
        results = [part for part in parts if part["part_kind"] == "tool-return"]
        if parts[: len(results)] != results:
            yield f"message {at}: content before the results"
        if [(part["tool_call_id"], part["tool_name"]) for part in results] != due:
            yield f"message {at}: the results do not match the calls {due}"
        calls = [part for part in parts if part["part_kind"] == "tool-call"]
        due = [(part["tool_call_id"], part["tool_name"]) for part in calls]
        for part in parts:
            if part["part_kind"] != "tool-call" and blank(part["content"]):
                yield f"message {at}: a blank {part['part_kind']}"
        for id, name in due:
            if not re.fullmatch("[a-zA-Z0-9]{9}", id) or id in used:
                yield f"message {at}: the id {id!r}"
            if not LETTER_FIRST.fullmatch(name):
                yield f"message {at}: the name {name!r}"
            used.add(id)
        if any(not isinstance(part["args"], dict) for part in calls):
            yield f"message {at}: the arguments are no object"
    if due:
        yield f"calls {due} have no result"
    if used and not body["tools"]:
        yield "calls, but no tools"
    if len(body["tools"]) > 128:
        yield f"{len(body['tools'])} tools"
    for name, description, schema in body["tools"]:
        if not LETTER_FIRST.fullmatch(name):
            yield f"the tool {name!r}"
        if len(description) > 1024:
            yield f"the description of {name} is too long"
        yield from schema_problems(name, schema, PARAMETER)
