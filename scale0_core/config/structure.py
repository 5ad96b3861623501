"""From tables of text files to attrs classes: strict, and with everything that is wrong at once."""

from __future__ import annotations

import difflib
import reprlib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import attrs

from scale0_core.errors import Fault

T = TypeVar("T")

_TOO_LARGE = 10**300
"""Whole numbers from here on are no floats."""

_NAMES: dict[Any, str] = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_PLURALS: dict[Any, str] = {str: "strings", int: "whole numbers", float: "numbers"}


def structure(cls: type[T], table: object, place: str) -> tuple[T | None, list[Fault]]:
    """Make a settings object from a table, or list all faults; ``place`` is the table's name, as in ``plugin.echo``."""
    faults: list[Fault] = []
    value = _read(cls, table, place, faults)
    return (None, faults) if faults else (cast("T", value), [])


def nearest(word: str, known: Iterable[str]) -> str:
    """Give a hint at the known name that looks most like a wrong one, or all known ones when none does."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(names)}" if names else ""


def describe(annotation: Any) -> str:
    """Say in words what values a setting takes."""
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(annotation))
    if is_union(annotation):
        return " or ".join(describe(part) for part in get_args(annotation) if part is not type(None))
    if origin in (tuple, list):
        return f"a list of {_PLURALS.get(get_args(annotation)[0], 'values')}"
    return _NAMES.get(annotation, "a table")


def shown(value: object) -> str:
    """Write a wrong value into a message: short, however long, deep or large it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return f"a huge {type(value).__name__}"


def _read(annotation: Any, value: Any, place: str, faults: list[Fault]) -> Any:
    """Read one value; what is wrong with it goes to ``faults``."""
    origin = get_origin(annotation)
    if attrs.has(annotation):
        return _read_table(annotation, value, place, faults)
    if is_union(annotation):
        return _read_union(annotation, value, place, faults)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        item = get_args(annotation)[0]
        return origin(_read(item, entry, f"{place}[{index}]", faults) for index, entry in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        item = get_args(annotation)[1]
        return {key: _read(item, entry, f"{place}.{key}", faults) for key, entry in value.items()}
    if origin is Literal and value in get_args(annotation):
        return value
    if annotation is float and type(value) is int and abs(value) < _TOO_LARGE:
        return float(value)
    if type(value) is not annotation:
        faults.append(Fault(place, f"must be {describe(annotation)}, not {shown(value)}"))
    return value


def is_union(annotation: Any) -> bool:
    """Tell whether an annotation is a choice of several, as in ``int | str``."""
    return get_origin(annotation) in (Union, types.UnionType)


def _read_union(annotation: Any, value: Any, place: str, faults: list[Fault]) -> Any:
    if value is None and type(None) in get_args(annotation):
        return None
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if len(parts) == 1:
        return _read(parts[0], value, place, faults)
    for part in parts:
        attempt: list[Fault] = []
        result = _read(part, value, place, attempt)
        if not attempt:
            return result
    faults.append(Fault(place, f"must be {describe(annotation)}, not {shown(value)}"))
    return value


def _read_table(cls: Any, table: Any, place: str, faults: list[Fault]) -> Any:
    if not isinstance(table, Mapping):
        faults.append(Fault(place, f"must be a table, not {shown(table)}"))
        return None
    before = len(faults)
    fields = {field.name: field for field in attrs.fields(attrs.resolve_types(cls))}
    values = {}
    for key, value in table.items():
        at = f"{place}.{key}" if place else key
        if key in fields:
            values[key] = _read_field(fields[key], value, at, faults)
        else:
            faults.append(Fault(at, "unknown setting", nearest(key, fields)))
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in table:
            faults.append(Fault(f"{place}.{name}" if place else name, f"is missing: {describe(field.type)}"))
    if len(faults) > before:
        return None
    try:
        return cls(**values)
    except Exception as error:  # a check that looks at several fields, or a converter; a plugin's own code
        faults.append(Fault(place, _message(error)))
        return None


def _read_field(field: attrs.Attribute[Any], value: Any, place: str, faults: list[Fault]) -> Any:
    before = len(faults)
    result = _read(field.type, value, place, faults)
    if field.validator is not None and len(faults) == before:
        try:
            field.validator(None, field, result)
        except (TypeError, ValueError) as error:
            faults.append(Fault(place, _message(error).removeprefix(f"'{field.name}' ")))
        except Exception:  # noqa: S110  it looks at the other fields too: the class calls it again when it is made
            pass
    return result


def _message(error: Exception) -> str:
    """Give what an error says; those of attrs carry more than the message."""
    return str(error.args[0]) if error.args else type(error).__name__
