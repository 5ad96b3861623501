"""``scale0 plugins``: what is installed, what it offers, and what is wrong with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from scale0_core.cli import kit
from scale0_core.cli.manage import broker_options, request

ASKED_SECONDS = 2.0
"""How long a running broker is asked for."""

if TYPE_CHECKING:
    from scale0_core.cli.survey import Finding, Survey


@click.group()
def plugins() -> None:
    """List, show and diagnose installed plugins."""


@plugins.command()
@kit.config_option
@kit.output_option
def ls(file: str | None) -> None:
    """List the plugins that are installed, and those that the configuration asks for in vain."""
    from scale0_core.cli.survey import survey

    found = survey(file)
    _warn_of_faults(found)
    rows = [_row(found, name) for name in found.names()]
    kit.emit(
        "scale0.plugins/1",
        rows,
        columns={
            "name": "name", "version": "version", "enabled": "enabled", "safe_by_default": "safe", "state": "state",
            "summary": "summary",
        },
    )  # fmt: skip
    if not rows:
        kit.say("No plugin is installed. Try: pip install scale0-echo")
    elif found.plugins.failures:
        kit.say("Some cannot be used; scale0 plugins doctor says why.")


@plugins.command()
@click.argument("name")
@kit.config_option
@kit.output_option
def show(name: str, file: str | None) -> None:
    """Show one plugin: its settings, its hooks and its services."""
    from scale0_core.cli.survey import survey

    found = survey(file)
    _warn_of_faults(found)
    if name not in found.plugins.plugins and name not in found.plugins.failures:
        raise _missing(name, found)
    if name in found.plugins.failures:
        raise found.plugins.failures[name]
    info = found.plugins.plugins[name].info
    about = {
        **_row(found, name),
        "api": list(info.api),
        "command": _has_command(name),
        "hooks": _hooks(found, name),
        "settings": _settings(info.settings),
        "services": _services(found, name),
    }
    kit.emit("scale0.plugin/1", about, show=lambda: _show(about))


@plugins.command()
@click.argument("name", required=False)
@kit.config_option
@kit.output_option
def doctor(name: str | None, file: str | None) -> None:
    """Try all plugins, or just NAME, and say of each problem what, why, what follows and what to do.

    Services are made, but no socket is opened. A broker that runs is asked for services in quarantine. Exits with 1
    when anything is wrong.
    """
    from scale0_core.cli.survey import survey

    found = survey(file)
    if name is not None and name not in found.names():
        raise _missing(name, found)
    problems = [*found.findings(), *_quarantined(found)]
    findings = [finding for finding in problems if name in (None, finding.plugin)]
    rows = [
        {"plugin": f.plugin, "what": f.problem.what, "why": f.problem.why, "consequence": f.problem.consequence,
         "remedy": f.problem.remedy}
        for f in findings
    ]  # fmt: skip
    kit.emit("scale0.plugin-problems/1", rows, show=lambda: _show_findings(found, name, findings))
    if findings:
        kit.finish(kit.Exit.NEGATIVE)


@plugins.command()
@click.argument("plugin")
@broker_options
@kit.output_option
def resume(plugin: str, **who: Any) -> None:
    """Take the services of PLUGIN out of quarantine, in the broker that runs.

    They go on with what they had in memory, with their sockets open and their count of errors at zero.
    """
    kit.emit("scale0.plugin-resumed/1", request("resume", {"name": plugin}, **who))


def _quarantined(found: Survey) -> list[Finding]:
    """Ask the broker that runs with this configuration, if one does, for services in quarantine."""
    from scale0_core.cli.survey import Finding

    try:
        state = request("state", broker=found.core.broker.name, user=None, timeout=ASKED_SECONDS)
    except kit.Scale0Error:
        return []  # none runs, or not this version
    return [Finding(row["plugin"], _in_quarantine(row)) for row in state.get("quarantined", ())]


def _in_quarantine(row: dict[str, Any]) -> kit.Problem:
    return kit.Problem(
        f"the service {row['service']} is quarantined",
        f"it raised {row['errors']} exceptions, the last one {row['last_error']}",
        "it is not called, its sockets are closed, and tasks for it get 503",
        f"fix the cause, then: scale0 plugins resume {row['plugin']}",
    )


def _row(found: Survey, name: str) -> dict[str, Any]:
    installed = found.installed.get(name)
    loaded = found.plugins.plugins.get(name)
    return {
        "name": name,
        "version": installed.version if installed else None,
        "distribution": installed.distribution if installed else None,
        "enabled": found.enabled(name),
        "safe_by_default": loaded.info.safe_by_default if loaded else None,
        "state": "ok" if loaded else "failed" if installed else "missing",
        "summary": loaded.info.summary if loaded else found.plugins.failures[name].problem.why,
    }


def _hooks(found: Survey, name: str) -> list[str]:
    from scale0_core import hookspecs

    plugin = found.plugins.plugins[name].plugin
    mark = f"{hookspecs.PROJECT}_impl"
    known = [hook for hook in vars(hookspecs) if hook.startswith("scale0_")]
    return [hook for hook in known if hasattr(getattr(plugin, hook, None), mark)]


def _settings(cls: type | None) -> list[dict[str, Any]]:
    import attrs

    from scale0_core.config.structure import describe

    if cls is None:
        return []
    return [
        {
            "name": field.name,
            "takes": describe(field.type),
            "required": field.default is attrs.NOTHING,
            "default": _default(field),
            "help": field.metadata.get("help", ""),
        }
        for field in attrs.fields(attrs.resolve_types(cls))
    ]


def _default(field: Any) -> Any:
    import attrs

    if field.default is attrs.NOTHING:
        return None
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # at run time it is a class
        return None if field.default.takes_self else field.default.factory()
    return field.default


def _services(found: Survey, name: str) -> list[dict[str, Any]]:
    from scale0_core.config.folders import broker_context

    if found.settings.get(name) is None and found.plugins.plugins[name].info.settings is not None:
        return []  # its table is wrong, which was said already
    try:
        services = found.plugins.services(name, found.settings[name], broker_context(found.core.broker, os.environ))
    except kit.Scale0Error as error:
        kit.say(kit.problem_text(error.problem, "warning"))
        return []
    return [
        {
            "service": service.name,
            "socket": socket,
            "kind": endpoint.kind.value,
            "bind": list(endpoint.bind),
            "connect": list(endpoint.connect),
        }
        for service in services
        for socket, endpoint in service.endpoints.items()
    ]


def _has_command(name: str) -> bool:
    from scale0_core.cli import plugin_commands

    return name in plugin_commands()


def _show(about: dict[str, Any]) -> None:
    heading = f"{about['name']} {about['version']}"
    click.echo(f"{click.style(heading, bold=True)} ({about['distribution']}): {about['summary']}\n")
    enabled = "enabled" if about["enabled"] else "not enabled"
    click.echo(f"State     {about['state']}, {enabled}, {'' if about['safe_by_default'] else 'not '}safe by default")
    lowest, highest = about["api"]
    click.echo(f"API       {lowest if lowest == highest else f'{lowest} to {highest}'}")
    click.echo(f"Hooks     {', '.join(about['hooks'])}")
    if about["command"]:
        click.echo(f"Command   scale0 {about['name']} --help")
    if about["services"]:
        click.echo(click.style("\nServices", bold=True))
    for service in about["services"]:
        places = ", ".join([*(f"binds {a}" for a in service["bind"]), *(f"connects {a}" for a in service["connect"])])
        click.echo(f"  {service['service']}.{service['socket']}  {service['kind']}  {places}")
    if about["settings"]:
        click.echo(click.style(f"\nSettings in [plugin.{about['name']}]", bold=True))
    for setting in about["settings"]:
        default = "must be set" if setting["required"] else f"default {kit.cell(setting['default'])}"
        takes = click.style(f"{setting['takes']}, {default}", dim=True)
        click.echo(f"  {setting['name']}  {takes}\n      {setting['help']}")


def _show_findings(found: Survey, name: str | None, findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(kit.problem_text(finding.problem, finding.plugin) + "\n")
    tried = "1 plugin" if name or len(found.names()) == 1 else f"{len(found.names())} plugins"
    problems = {0: "nothing wrong", 1: "1 problem"}.get(len(findings), f"{len(findings)} problems")
    click.echo(f"{tried} tried: {problems}")


def _missing(name: str, found: Survey) -> kit.Scale0Error:
    from scale0_core.config.structure import nearest
    from scale0_core.plugins import distribution_name

    return kit.NegativeError(
        f"there is no plugin {name}", nearest(name, found.names()) or "no plugin is installed",
        "nothing was done", f"pip install {distribution_name(name)}, or: scale0 plugins ls",
    )  # fmt: skip


def _warn_of_faults(found: Survey) -> None:
    if found.faults:
        faults = "\n".join(map(str, found.faults))
        problem = kit.Problem(
            f"{found.source} is wrong", faults, "a broker does not start with it", "scale0 config check"
        )
        kit.say(kit.problem_text(problem, "warning"))
