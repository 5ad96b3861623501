"""Write the reference pages that follow from the code: settings, hooks, events, commands, errors; draw its diagrams.

``python docs/generate.py`` writes them; with ``--check`` nothing is written, and it ends with 1 when a page is not up
to date. The core and the plugins of this repository must be installed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import attrs
import click

from scale0_core import errors, events, hookspecs
from scale0_core.cli import COMMANDS, PLUGIN_COMMANDS, plugin_command, scale0
from scale0_core.cli.errors import EXITS
from scale0_core.client.session import WORKER
from scale0_core.config.settings import CoreSettings
from scale0_core.config.structure import describe
from scale0_core.container.host import HostCounts
from scale0_core.plugin_types import API_VERSION, BatchReport, BrokerContext, PluginInfo, RunningBroker
from scale0_core.plugins import GROUP, PluginSet
from scale0_core.protocol.codes import CODES
from scale0_core.protocol.states import BROKER, CLIENT, draw

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- written by docs/generate.py from the code: do not edit -->"


def main() -> int:
    """Write all pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when a page is not up to date")
    check = parser.parse_args().check
    stale = []
    pages = {name: f"{NOTE}\n\n{make()}" for name, make in PAGES.items()}
    pages.update({name: with_diagrams(REFERENCE / name) for name in PAGES_WITH_DIAGRAMS})
    for name, text in pages.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        verb = "not up to date, run python docs/generate.py" if check else "written"
        sys.stdout.write("".join(f"docs/reference/{name}: {verb}\n" for name in stale))
    return 1 if check and stale else 0


def own(group: str) -> list[str]:
    """Give the names of the entry points of a group in this repository, whatever else is installed."""
    projects = [tomllib.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("plugins/*/pyproject.toml")]
    return sorted(name for each in projects for name in each["project"]["entry-points"].get(group, ()))


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Write the page of all settings."""
    tables = attrs.fields(attrs.resolve_types(CoreSettings))
    parts = [SETTINGS_INTRODUCTION, *(settings_table(table.name, table.type) for table in tables)]
    plugins = PluginSet()
    plugins.load_installed(own(GROUP))
    for name in own(GROUP):
        if name in plugins.failures:
            raise SystemExit(f"plugin {name}: {plugins.failures[name]}")
        info = plugins.plugins[name].info
        if info.settings is not None:
            parts.append(settings_table(f"plugin.{name}", info.settings))
    return "\n".join(parts)


def settings_table(name: str, cls: Any) -> str:
    """Write one table of broker.toml."""
    rows = [
        (f"`{field.name}`", describe(field.type), default_of(field), field.metadata.get("help", ""))
        for field in attrs.fields(attrs.resolve_types(cls))
    ]
    about = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    page = f"## `[{name}]`\n\n{about}\n\n{markdown_table(('setting', 'takes', 'default', 'what it does'), rows)}"
    inner = [field for field in attrs.fields(cls) if isinstance(field.type, type) and attrs.has(field.type)]
    return "\n".join([page, *(settings_table(f"{name}.{field.name}", field.type) for field in inner)])


def default_of(field: attrs.Attribute[Any]) -> str:
    """Give the default of a setting, as TOML writes it."""
    if field.default is attrs.NOTHING:
        return "must be set"
    default: Any = field.default
    value = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
    return "not set" if value is None else f"`{toml(value)}`"


def toml(value: object) -> str:
    """Write a value as TOML does."""
    if attrs.has(type(value)):
        value = attrs.asdict(cast("Any", value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


SETTINGS_INTRODUCTION = """# Settings

All that `broker.toml` may hold. A broker reads the file given by `--config`, else the one named by `$SCALE0_CONFIG`,
else `broker.toml` in the current folder; without any it runs on the defaults below.

- A key that is not listed here is refused, with the nearest known name. So is a value of another type. All faults are
  reported at once. `scale0 config check` does this without starting a broker.
- `scale0 config show` prints what a broker would run with. `scale0 plugins show NAME` lists the settings of a plugin.
- `--set TABLE.KEY=VALUE` changes one setting for one run. The value is TOML; a bare word is a string.
- `--name NAME` is short for `--set broker.name=NAME`, and wins over it.

[examples/broker.toml](../../examples/broker.toml) is a file with every setting of the core.
"""


# --- hooks ------------------------------------------------------------------------------------------------------------


def hooks_page() -> str:
    """Write the page of all hooks."""
    parts = [HOOKS_INTRODUCTION.replace("@API_VERSION@", str(API_VERSION))]
    hooks = [function for name, function in vars(hookspecs).items() if name.startswith("scale0_")]
    parts += [hook_part(hook) for hook in hooks]
    parts.append("## What passes through hooks\n\nImport the first four from `scale0_core.api`.\n")
    parts += [class_part(cls) for cls in (PluginInfo, BrokerContext, RunningBroker, BatchReport, HostCounts)]
    return "\n".join(parts)


def hook_part(hook: Callable[..., Any]) -> str:
    """Write the part of one hook: its signature, and its docstring as a text."""
    signature = f"def {hook.__name__}{inspect.signature(hook)}".replace("'", "")
    lines = inspect.cleandoc(hook.__doc__ or "").splitlines()
    return f"## `{hook.__name__}`\n\n```python\n{signature}: ...\n```\n\n" + "\n".join(docstring(lines)) + "\n"


def docstring(lines: list[str]) -> Iterator[str]:
    """Turn the fields of a docstring into a list, and code in it into code."""
    for line in lines:
        text = code(line)
        if match := re.match(r":param (\w+): ?(.*)", text):
            yield f"- `{match[1]}`: {match[2]}"
        elif match := re.match(r":return: ?(.*)", text):
            yield f"- returns {match[1]}"
        elif match := re.match(r"(When it is called|Order): ?(.*)", text):
            yield from ("", f"**{match[1]}**: {match[2]}") if match[1] == "Order" else (f"**{match[1]}**: {match[2]}",)
        else:
            yield f"  {text.strip()}" if line.startswith(" ") else text


def class_part(cls: type) -> str:
    """Write the fields of a class."""
    rows = []
    for name, kind, default in fields_of(cls):
        made = isinstance(default, attrs.Factory)  # type: ignore[arg-type]
        words = "" if default is attrs.NOTHING or callable(default) else "empty" if made else f"`{default!r}`"
        rows.append((f"`{name}`", f"`{annotation(kind)}`", words))
    about = code(inspect.cleandoc(cls.__doc__ or "").splitlines()[0])
    return f"### `{cls.__name__}`\n\n{about}\n\n{markdown_table(('field', 'type', 'default'), rows)}"


def fields_of(cls: Any) -> list[tuple[str, Any, Any]]:
    """Give name, type and default of each field of an attrs class or a named tuple."""
    if attrs.has(cls):
        return [(field.name, field.type, field.default) for field in attrs.fields(cls)]
    defaults = cls._field_defaults
    return [(name, kind, defaults.get(name, attrs.NOTHING)) for name, kind in cls.__annotations__.items()]


def annotation(kind: Any) -> str:
    """Write a type as the code has it."""
    kind = getattr(kind, "__forward_arg__", kind)
    return kind if isinstance(kind, str) else str(getattr(kind, "__name__", kind))


HOOKS_INTRODUCTION = """# Hooks

A plugin is a class whose methods carry `@hookimpl` and have the names below. An entry point of the group
`scale0.plugins` names the class; the name of the entry point is the plugin's name. The core makes one instance per
broker, without arguments, so what hooks share belongs in `self`
([no state in modules](../adr/0028-plugins-are-classes.md)).

- A hook may take fewer parameters than listed here, not others. A hook whose name does not exist is an error that names
  the nearest one.
- One plugin's exception never keeps the others from being called. At start the plugin is not
  used, and a broker that needs it does not start; in
  `scale0_started` it is logged, and a broker that needs the plugin exits with an error; in `scale0_stopping` it is
  logged; in `scale0_batch` it is logged and the hook is not called again.
- Hooks run at start, at stop and once per batch, never once per message. Messages go to the
  [service](service.md) directly.
- `scale0 plugins show` and `scale0 plugins doctor` call `scale0_plugin_info` and `scale0_services` as well, without
  starting a broker. So these two must not write files, open connections or start threads.
- This is API version @API_VERSION@. A plugin says in `PluginInfo.api` with which versions it works.
- Commands of plugins are not a hook but entry points of the group `scale0.commands`
  ([why](../adr/0006-commands-by-entry-points.md)).
"""


# --- events -----------------------------------------------------------------------------------------------------------


def events_page() -> str:
    """Write the page of all kinds of events, and of the columns in which they are stored."""
    fields = [(f"`{name}`", STORED[field.type], field.summary) for name, field in events.FIELDS.items()]
    kinds = [
        (f"`{kind.name}`", ", ".join(f"`{field}`" for field in kind.fields), kind.summary)
        for kind in events.KINDS.values()
    ]
    columns = [*STORED_BEFORE, *((name, kind, "the field of that name") for name, kind, _ in fields), *STORED_AFTER]
    return "\n".join(
        (
            EVENTS_INTRODUCTION.replace("@VERSION@", str(events.VERSION)),
            "## Kinds\n",
            markdown_table(("kind", "fields", "what it tells"), kinds),
            "## Fields\n",
            markdown_table(("field", "type", "what it says"), fields),
            "A kind may have fields that are not here, as `text` of `song_search`; they are kept as details.\n",
            EVENTS_STORED.replace("@VERSION@", str(events.VERSION)),
            markdown_table(("column", "type", "what is in it"), columns),
            EVENTS_FILES,
        )
    )


STORED = {str: "string", int: "int64", float: "float64"}

STORED_BEFORE = [
    ("`v`", "int16", "the version of the schema"),
    ("`broker`", "string", "the name of the broker"),
    ("`epoch`", "int64", "when the broker's process started, in microseconds of UTC"),
    ("`seq`", "int64", "the number of the event in this epoch, from 1 on"),
    ("`ts`", "timestamp, microseconds, UTC", "when it happened"),
    ("`weight`", "float64", "how many events this one stands for: more than 1 where only some are kept"),
]

STORED_AFTER = [
    ("`details`", "string", "fields that have no column, as a JSON object; mostly null"),
    ("`kind`", "string", "the name of the kind; in files, a part of the path"),
    ("`date`", "date", "the day of `ts` in UTC; in files, a part of the path"),
]

EVENTS_INTRODUCTION = """# Events

What services tell of while a plugin observes it: one that has the hook [`scale0_batch`](hooks.md#scale0_batch) and says
`observes_events` in its `PluginInfo`. While none does, no event is made. This is version @VERSION@; it grows when a
field or a kind changes its meaning. New fields and kinds may come at any time.

An event is a plain tuple: `(kind, now, *values)`, with a value for each field of its kind, in order, and None where
nothing is known. `kind` is an `EventKind`; those below are in `scale0_core.api.events`, in capitals, and `events.KINDS`
has them by name. `kind.table(event)` gives the values by name. [How a service tells of events](service.md#events).

Of tasks there are very many, so the broker packs them: a record of 40 bytes each (`packing.RECORD`), and a list of what
is the same for many. It is the same schema in another form. A report has them as `PackedEvents`, a sequence that gives
the same tuples to whoever iterates; who stores many of them reads `runs` as they are.

- **Time.** `now` is the broker's steady clock, in seconds, as the service was given it. It has no date. Whoever stores
  events notes once what o'clock it was at some `now`, and adds the difference.
- **Order and ids.** A report has the events of one turn of the loop, service by service, in the order in which they
  happened. Who stores them counts them: (`broker`, `epoch`, `seq`) is the id of an event. Two rows with the same id are
  the same event, delivered twice.
- **Names.** Services, workers and pipes are told as text that can be printed, whatever bytes they are. A worker of the
  Scale0 protocol is told by its identity, one of Majordomo by its routing id.
- **Durations** are in whole microseconds of the same clock, which is read once a turn of the loop: they are as exact as
  the turns are short.
- **A request that crosses a bridge** is told on both sides: as `task` by the broker, and as `rpc` by Majordomo where a
  worker of its own answers it. Whoever counts both leaves out tasks that have `service_us` and no `peer`: a bridge, or
  a service of the broker itself, is no worker of whom there could be more or fewer.
"""

EVENTS_STORED = """## Stored

One row is one event. Version @VERSION@ has these columns, in this order:
"""

EVENTS_FILES = """In files: `<folder>/date=YYYY-MM-DD/kind=<kind>/<broker>-<epoch>-<first seq>.parquet`, with the entry
`scale0.events = 1` in the metadata. Files whose names begin with `.` are not complete. In a pipe: a chunk is one
Arrow IPC stream of one record batch, with `kind` and `date` as columns.
"""


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Write the page of all commands, those of this repository's plugins included."""
    context = click.Context(scale0, info_name="scale0")
    parts = [COMMANDS_INTRODUCTION, "## `scale0`\n", options_table(scale0)]
    for name in COMMANDS:
        command = scale0.get_command(context, name)
        assert command is not None
        parts += command_parts(command, f"scale0 {name}")
    ours = own(PLUGIN_COMMANDS)
    for entry in sorted(entry_points(group=PLUGIN_COMMANDS), key=lambda entry: entry.name):
        if entry.name in ours:
            parts += command_parts(plugin_command(entry), f"scale0 {entry.name}", f"From the plugin {entry.name}. ")
    return "\n".join(parts)


def command_parts(command: click.Command, path: str, prefix: str = "") -> Iterator[str]:
    """Write the part of one command; a group is written as its sub-commands."""
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from command_parts(inner, f"{path} {name}", prefix)
        return
    arguments = [usage_of(param) for param in command.params if isinstance(param, click.Argument)]
    yield f"## `{path}`\n"
    yield f"```\n{' '.join([path, '[OPTIONS]', *arguments])}\n```\n"
    yield prefix + inspect.cleandoc(command.help or "") + "\n"
    yield options_table(command)


def usage_of(argument: click.Argument) -> str:
    """Write an argument as a usage line has it."""
    name = (argument.metavar or argument.name or "").upper()
    if isinstance(argument.type, click.Choice):
        name = "{" + "|".join(argument.type.choices) + "}"
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def options_table(command: click.Command) -> str:
    """Write the options of a command."""
    rows = [
        (", ".join(f"`{flag}`" for flag in param.opts), values_of(param), shown_default(param), param.help or "")
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]
    return markdown_table(("option", "takes", "default", "what it does"), rows) if rows else ""


def values_of(option: click.Option) -> str:
    """Say what an option takes."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return " or ".join(f"`{choice}`" for choice in option.type.choices)
    return option.metavar or option.type.name.upper()


def shown_default(option: click.Option) -> str:
    """Give the default of an option that shows it."""
    return f"`{option.default}`" if option.show_default else ""


COMMANDS_INTRODUCTION = """# Commands

Data goes to stdout, everything else to stderr. `-o json` gives one JSON object that carries the name and version of its
schema, `-o jsonl` one object a line. `NO_COLOR` is respected. Errors have four parts: what, why, consequence, next.
[Exit codes](errors.md#exit-codes) follow sysexits. `-h` or `--help` works on every command.
"""


# --- errors -----------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """Write the page of all errors and codes."""
    exits = [(int(code), code.name.lower(), *words) for code, words in EXITS.items()]
    protocol = [
        (int(info.code), info.name, ", ".join(info.messages) or "never sent", info.meaning, info.remedy)
        for info in CODES.values()
    ]
    tree = inspect.cleandoc(errors.__doc__ or "").split("::", 1)[1].strip("\n")
    return "\n".join(
        (
            ERRORS_INTRODUCTION,
            "## Exit codes\n",
            markdown_table(("code", "name", "meaning", "what to do"), exits),
            "A second signal ends a broker at once, with 128 and the signal's number: 143 after TERM, 130 after INT.\n",
            "## Exceptions\n",
            "All in `scale0_core.errors`; plugins get `Scale0Error` and `Problem` from `scale0_core.api`.\n",
            f"```\n{inspect.cleandoc(tree)}\n```\n",
            "## Codes of the protocol\n",
            PROTOCOL_INTRODUCTION,
            markdown_table(("code", "name", "sent in", "meaning", "what to do"), protocol),
        )
    )


ERRORS_INTRODUCTION = """# Errors

Every error that Scale0 shows has four parts: what happened, why, what follows from it, and what to do now. With
`-o json` it is one JSON object on stderr (schema `scale0.error/1`) with the fields `what`, `why`, `consequence`,
`remedy` and `exit`. `scale0 errors CODE` explains a code in the terminal. The reasons of sends that failed are on the
page of the [service](service.md#sends-that-fail).
"""

PROTOCOL_INTRODUCTION = """\
HTTP's numbers, with the meaning they have in the [Scale0 protocol](protocol.md). Services use them in answers of
their own, and errors of clients have them as `code`: 408 is a call whose time is over there, and 410 a cancelled one.
"""


# --- diagrams ---------------------------------------------------------------------------------------------------------

DIAGRAMS = {"client": draw(CLIENT), "broker": draw(BROKER), "worker": draw(WORKER)}
PAGES_WITH_DIAGRAMS = ("protocol.md",)
PLACE = re.compile(r"(<!-- diagram (\w+), drawn by docs/generate.py -->\n).*?(<!-- end of diagram -->)", re.DOTALL)


def with_diagrams(path: Path) -> str:
    """Give a page that is written by hand, with the diagrams in it drawn anew."""
    text = path.read_text(encoding="utf-8")
    drawn = PLACE.sub(lambda place: f"{place[1]}```mermaid\n{DIAGRAMS[place[2]]}\n```\n{place[3]}", text)
    if missing := DIAGRAMS.keys() - {place[2] for place in PLACE.finditer(text)}:
        raise SystemExit(f"{path.name} has no place for the diagrams {', '.join(sorted(missing))}")
    return drawn


# --- markdown ---------------------------------------------------------------------------------------------------------


def markdown_table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Write a table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """Turn reStructuredText's double backquotes into Markdown's single ones."""
    return text.replace("``", "`")


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "hooks.md": hooks_page,
    "events.md": events_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
}


if __name__ == "__main__":
    sys.exit(main())
