"""Random configurations, made from the attrs classes themselves: a new field is tested without a line here."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import attrs
from hypothesis import strategies as st

from scale0_core.config.structure import is_union

PLAIN_TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t", exclude_characters="\ufffe\uffff")
    | st.sampled_from("#'\" =<>&\\01"),
    max_size=20,
).filter(lambda text: not ('"' in text and "'" in text))
"""Texts that every format can express."""

ANY_TEXTS = PLAIN_TEXTS | st.text(max_size=20)


def configs(cls: type, texts: st.SearchStrategy[str] = PLAIN_TEXTS) -> st.SearchStrategy[Any]:
    """Make valid objects of an attrs class, and of those that it holds."""
    fields = attrs.fields(attrs.resolve_types(cls))
    return st.builds(cls, **{field.name: _field(field, texts) for field in fields})


def _field(field: attrs.Attribute[Any], texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    options = getattr(field.validator, "options", None)
    values = st.sampled_from(options) if options else _kind(field.type, texts)
    return values.filter(lambda value: _valid(field, value))


def _kind(kind: Any, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if is_union(kind):
        return st.one_of(*(_kind(part, texts) for part in get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(_kind(get_args(kind)[0], texts), max_size=3).map(tuple)
    if attrs.has(kind):
        return configs(kind, texts)
    numbers = st.integers(0, 65535) | st.integers(0, 2**31 - 1)
    simple = {str: texts, int: numbers, bool: st.booleans(), float: st.floats(allow_nan=False, allow_infinity=False)}
    return simple[kind]


def _valid(field: attrs.Attribute[Any], value: Any) -> bool:
    try:
        converted = field.converter(value) if field.converter else value
        if field.validator:
            field.validator(None, field, converted)
    except ValueError:
        return False
    return True
