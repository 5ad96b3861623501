"""``scale0 errors``: what the codes of the protocol and of this command mean."""

from __future__ import annotations

from typing import Any

import click

from scale0_core.cli import kit
from scale0_core.errors import Exit
from scale0_core.protocol.codes import CODES

EXITS = {
    Exit.DONE: ("done", "nothing"),
    Exit.NEGATIVE: ("the answer is no: something is wrong, missing or different", "read what was printed"),
    Exit.USAGE: ("the command line was used wrongly", "add --help to the command"),
    Exit.DATA: ("what was given as data cannot be used", "look at the place that the message names"),
    Exit.UNREACHED: (
        "the broker was not reached, or a name or an address is taken",
        "scale0 doctor says whether a broker runs, and where",
    ),
    Exit.BUG: ("a bug in scale0 or in a plugin", "report it, with what SCALE0_DEBUG=1 shows"),
    Exit.TIMEOUT: ("no answer came in time", "give it more time with --timeout, or look at the service"),
    Exit.PERMISSION: ("this user may not do that", "use another user, folder or role"),
    Exit.CONFIG: ("the configuration is wrong, or a required plugin is missing", "scale0 config check"),
}
"""What each exit code means, and what to do."""

COLUMNS = {"code": "code", "name": "name", "where": "where", "meaning": "meaning"}


@click.command()
@click.argument("code", required=False)
@kit.output_option
def errors(code: str | None) -> None:
    """Explain CODE: one of the Scale0 protocol (404) or an exit code of this command (78). Without CODE, list all."""
    known = _all()
    if code is None:
        kit.emit("scale0.errors/1", known, COLUMNS)
        kit.say("\nscale0 errors CODE says what to do")
        return
    wanted = code.lower().replace("-", "_")
    found = [entry for entry in known if wanted in (str(entry["code"]), entry["name"])]
    if not found:
        raise _unknown(code, known)
    kit.emit("scale0.errors/1", found, show=lambda: _show(found))


def _all() -> list[dict[str, Any]]:
    protocol = [
        {"code": int(info.code), "name": info.name, "kind": "protocol", "where": list(info.messages) or ["never sent"],
         "meaning": info.meaning, "remedy": info.remedy}
        for info in CODES.values()
    ]  # fmt: skip
    exits = [
        {"code": int(code), "name": code.name.lower(), "kind": "exit", "where": ["exit code"],
         "meaning": meaning, "remedy": remedy}
        for code, (meaning, remedy) in EXITS.items()
    ]  # fmt: skip
    return [*protocol, *exits]


def _show(found: list[dict[str, Any]]) -> None:
    for entry in found:
        title = f"{entry['code']} {entry['name']}"
        click.echo(f"{click.style(title, bold=True)}: {entry['meaning']}")
        where = "of the command scale0" if entry["kind"] == "exit" else ", ".join(entry["where"])
        click.echo(f"  {'exit code' if entry['kind'] == 'exit' else 'sent in':11}  {where}")
        click.echo(f"  what to do   {entry['remedy']}")


def _unknown(code: str, known: list[dict[str, Any]]) -> kit.NegativeError:
    if code.isdecimal():
        near = min(known, key=lambda entry: abs(int(entry["code"]) - int(code)))
        hint = f"the nearest is {near['code']} {near['name']}"
    else:
        from scale0_core.config.structure import nearest

        hint = nearest(code, {entry["name"] for entry in known})
    return kit.NegativeError(f"there is no code {code}", hint, "nothing was explained", "scale0 errors lists all")
