"""``scale0 config``: check a configuration, show what it amounts to, or convert it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_core.cli.survey import Survey


@click.group()
def config() -> None:
    """Check, show or convert the configuration."""


@config.command()
@click.argument("file", required=False, type=click.Path())
@kit.set_option
@kit.output_option
def check(file: str | None, overrides: tuple[str, ...]) -> None:
    """Check FILE (by default the one a broker would read) and list everything that is wrong.

    Exits with 78 when a broker would not start with it.
    """
    import attrs

    from scale0_core.cli.survey import survey
    from scale0_core.errors import ConfigError

    found = survey(file, overrides, load_all=False)
    warnings = _warnings(found)
    told = {
        "source": found.source,
        "valid": not found.faults,
        "faults": [{"place": f.place, "message": f.message, "hint": f.hint} for f in found.faults],
        "warnings": [attrs.asdict(problem) for problem in warnings],
    }
    if kit.output_format() == "table":
        for problem in warnings:
            kit.say(kit.problem_text(problem, "warning"))
        if found.faults:
            raise ConfigError(found.source, found.faults)
    verdict = f"valid, but see {'the warning' if len(warnings) == 1 else f'{len(warnings)} warnings'}"
    kit.emit(
        "scale0.config-check/1", told, show=lambda: click.echo(f"{found.source}: {verdict if warnings else 'valid'}")
    )
    if found.faults:
        kit.finish(kit.Exit.CONFIG)


@config.command()
@click.argument("file", required=False, type=click.Path())
@kit.set_option
@kit.output_option
def show(file: str | None, overrides: tuple[str, ...]) -> None:
    """Show the settings that a broker would run with, defaults included: those of FILE and of all enabled plugins."""
    import attrs

    from scale0_core.cli.survey import survey
    from scale0_core.errors import ConfigError

    found = survey(file, overrides, load_all=False)
    if found.config is None or found.faults:
        raise ConfigError(found.source, found.faults)
    core = attrs.asdict(found.core)
    plugins = {
        name: {} if settings is None else attrs.asdict(settings)
        for name, settings in found.settings.items()
        if found.enabled(name)
    }
    told = {"source": found.source, **core, "plugin": plugins}
    kit.emit("scale0.config/1", told, show=lambda: click.echo(_toml(found.source, core, plugins)))


@config.command()
@click.argument("file", required=False, metavar="FILE", type=click.Path())
@click.option("--to", required=True, metavar="FORMAT", help="The format to write: json, xml, zfl or toml.")
@click.option("--from", "from_", metavar="FORMAT", help="The format of FILE; by default its ending tells.")
@click.option(
    "--schema", type=click.Choice(["network", "client"]), default="network", show_default=True,
    help="What FILE is: the configuration of a broker's network, or what a client was given.",
)  # fmt: skip
@click.option("--out", metavar="FILE", type=click.Path(), help="The file to write; by default stdout.")
def convert(file: str | None, to: str, from_: str | None, schema: str, out: str | None) -> None:
    """Convert the configuration of the network in FILE (- is stdin) into another format.

    FILE is by default the one a broker would read; of a broker.toml the table [network] is taken. Every setting is
    written, defaults too. Exits with 65 when FILE is wrong, or holds what the other format cannot express.
    """
    from pathlib import Path

    from scale0_core.cli import convert as conversion

    data = conversion.convert(conversion.source_of(file, from_, schema), schema, to)
    if out is None:
        click.echo(data, nl=False)
        return
    try:
        Path(out).write_bytes(data)
    except OSError as error:
        raise kit.UsageError(
            f"{out} cannot be written", error.strerror or str(error), "nothing was written", "choose another --out"
        ) from error


def _warnings(found: Survey) -> list[kit.Problem]:
    """Tell of what does not keep a broker from starting."""
    failures = found.plugins.failures.items()
    left_out = [error.problem for name, error in failures if found.enabled(name) and not found.needed_by(name)]
    idle = [
        kit.Problem(f"{found.source} is wrong at {fault.place}", fault.message, "the plugin is not enabled", fault.hint)
        for fault in found.idle_faults
    ]
    unopened = [
        finding.problem
        for finding in found.service_findings()
        if found.enabled(finding.plugin) and not found.needed_by(finding.plugin)
    ]
    return [*left_out, *idle, *unopened]


def _toml(source: str, core: Mapping[str, Any], plugins: Mapping[str, Any]) -> str:
    """Write settings as a broker.toml that says the same."""
    tables = {**core, **{f"plugin.{name}": table for name, table in plugins.items()}}
    parts = [f"# what a broker runs with; source: {source}"]
    for name, table in tables.items():
        lines = (f"# {key} is not set" if value is None else f"{key} = {_value(value)}" for key, value in table.items())
        parts.append("\n".join((f"[{name}]", *lines)))
    return "\n\n".join(parts)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)
