"""Architecture rule 4: every setting is documented. Plugins' settings too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from scale0_core.config.settings import CoreSettings, LimitSettings, setting
from scale0_core.config.structure import describe, structure
from scale0_core.container.host import HostLimits
from scale0_core.plugins import PluginSet, installed_plugins

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "settings.md"


def fields_of(cls: Any, table: str) -> Iterator[tuple[str, attrs.Attribute[Any]]]:
    """Give every setting with its full name, as in ``wire.batch``."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        name = f"{table}.{field.name}".lstrip(".")
        if attrs.has(field.type):
            yield from fields_of(field.type, name)
        else:
            yield name, field


def plugin_classes() -> Iterator[tuple[str, type]]:
    plugins = PluginSet()
    plugins.load_installed(list(installed_plugins()))
    for name, plugin in plugins.plugins.items():
        if plugin.info.settings is not None:
            yield f"plugin.{name}", plugin.info.settings


SETTINGS = [*fields_of(CoreSettings, ""), *(pair for name, cls in plugin_classes() for pair in fields_of(cls, name))]


def test_the_settings_of_the_core_and_of_every_plugin_are_looked_at():
    names = {name for name, _ in SETTINGS}
    assert {"broker.name", "wire.batch", "log.levels", "limits.errors", "plugin.echo.bind"} <= names


@pytest.mark.parametrize(("name", "field"), SETTINGS, ids=[name for name, _ in SETTINGS])
def test_every_setting_has_a_help_text(name: str, field: attrs.Attribute[Any]):
    text = field.metadata.get("help", "")
    assert text[:1].isupper(), name
    assert text.endswith("."), name


@pytest.mark.parametrize(("name", "field"), SETTINGS, ids=[name for name, _ in SETTINGS])
def test_every_setting_has_a_kind_that_can_be_read_from_a_table(name: str, field: attrs.Attribute[Any]):
    default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default
    plain = attrs.make_class("Plain", {"x": attrs.field(type=field.type)})
    _, faults = structure(plain, {"x": default}, "")
    assert faults == []
    assert describe(field.type)


def test_every_setting_stands_in_the_reference():
    assert REFERENCE.exists(), f"{REFERENCE.relative_to(ROOT)} is to be generated from the settings classes"
    text = REFERENCE.read_text(encoding="utf-8")
    parts = re.split(r"^#+ ", text, flags=re.MULTILINE)
    sections = {table: part for part in parts for table in re.findall(r"\[([\w.-]+)\]", part.partition("\n")[0])}
    assert [name for name, _ in SETTINGS if not _stands_in(sections, name)] == []


def _stands_in(sections: dict[str, str], name: str) -> bool:
    """Tell whether the section with the table in its heading, as in ``[wire]``, shows the key, as in `` `batch` ``."""
    table, _, key = name.rpartition(".")
    return f"`{key}`" in sections.get(table, "")


def test_a_setting_has_a_default_a_help_text_and_a_check():
    @attrs.frozen
    class Own:
        size: int = setting(3, "How large.", validator=attrs.validators.ge(1))

    (field,) = attrs.fields(Own)
    assert (field.default, field.metadata["help"]) == (3, "How large.")
    with pytest.raises(ValueError, match="must be >= 1: 0"):
        Own(size=0)


def test_the_limits_reach_the_seat():
    limits = LimitSettings(errors=3, errors_window_seconds=7.0, jobs=5)
    assert HostLimits(errors=3, errors_window=7.0, jobs=5) == limits.host_limits()
