"""Models of pydantic in annotations, known by the methods they have: pydantic is no dependency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, Self, cast, runtime_checkable

from motet.protocols.chat import JsonObject


class Model(Protocol):
    """What is used of a ``pydantic.BaseModel``."""

    @classmethod
    def model_json_schema(cls, *, ref_template: str) -> JsonObject: ...

    @classmethod
    def model_validate(cls, obj: object) -> Self: ...

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> object: ...


@runtime_checkable
class _Failure(Protocol):
    def errors(self) -> list[Mapping[str, object]]: ...


def model_of(kind: type) -> type[Model] | None:
    """The type as a model, if it is one."""
    has_all = all(hasattr(kind, name) for name in ("model_json_schema", "model_validate"))
    return cast("type[Model]", kind) if has_all else None  # it has what is used of it


def schema_of_model(model: type[Model]) -> tuple[JsonObject, dict[str, JsonObject]]:
    """Its schema, and the definitions that this refers to; their names begin with the model's."""
    name = model.__name__
    schema = dict(model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}"))
    defs = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
    return schema, {f"{name}.{key}": part for key, part in defs.items()}


def dumped(value: object) -> object:
    """A model as the JSON data that it is read from. Raises ``TypeError`` for anything else."""
    if model_of(type(value)) is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return cast(Model, value).model_dump(mode="json", by_alias=True, round_trip=True)


def problems_of(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Path and message of all that a model has found wrong; nothing for another error."""
    if not isinstance(error, _Failure) or not isinstance(error, ValueError):
        return
    for problem in error.errors():
        place = cast("tuple[str | int, ...]", problem.get("loc", ()))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        yield path, str(problem.get("msg", "is wrong"))
