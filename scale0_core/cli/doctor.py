"""``scale0 doctor``: a look at this machine, this installation and this configuration."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_core.cli.survey import Survey

OK, WARNING, WRONG = "ok", "warning", "wrong"
COLORS = {OK: "green", WARNING: "yellow", WRONG: "red"}

FEW_DESCRIPTORS = 8192
"""A connection takes one: below this many a broker may run out of them."""

LONGEST_FOLDER = 80
"""A unix socket's path has about 107 characters, and a service needs some for its name."""


WHICH = (
    "Name of the broker to look at, or the address of one that runs here. "
    "[default: without --config $SCALE0_BROKER, else the name in the configuration]"
)


@attrs.frozen
class Check:
    """One thing that was looked at."""

    name: str
    state: str
    found: str
    remedy: str = ""


@click.command()
@kit.config_option
@kit.broker_option("-n", "--name", text=WHICH)
@kit.output_option
def doctor(file: str | None, broker: str | None) -> None:
    """Look at this machine, this installation and the configuration; say what is wrong and what to do.

    Exits with 1 when something is wrong; a warning alone does not count.
    """
    from scale0_core.cli.survey import survey

    given = broker or (None if file else kit.broker_of_environment())
    found = survey(file, kit.overrides_of(given and kit.broker_here(given)[0], ()))
    checks = [check for look in LOOKS for check in look(found)]
    rows = [attrs.asdict(check) for check in checks]
    kit.emit("scale0.doctor/1", rows, show=lambda: _show(checks))
    if any(check.state == WRONG for check in checks):
        kit.finish(kit.Exit.NEGATIVE)


def look_at_python(_: Survey) -> Iterator[Check]:
    """Python and the machine."""
    yield Check("python", OK, f"{platform.python_version()} ({platform.python_implementation()}), {sys.prefix}")
    state = OK if sys.platform == "linux" else WARNING
    yield Check("platform", state, platform.platform(), "" if state == OK else "Scale0 is tested on Linux only")


def look_at_zmq(_: Survey) -> Iterator[Check]:
    """ZeroMQ: versions, and whether connections can be encrypted."""
    import zmq

    yield Check("pyzmq", OK, zmq.pyzmq_version())
    yield Check("libzmq", OK, zmq.zmq_version())
    if zmq.has("curve"):
        yield Check("curve", OK, "libzmq has it; Scale0 does not use it yet")
    else:
        yield Check("curve", WARNING, "not available: nothing can be encrypted", "pip install --force-reinstall pyzmq")


def look_at_wire(found: Survey) -> Iterator[Check]:
    """Which wire a broker would use, and why not the quicker one."""
    from scale0_core.io.wire import native_problem

    asked, problem = found.core.wire.implementation, native_problem()
    compiler = "reinstall scale0-core where a C compiler is at hand: the pure wire takes several times the CPU"
    if asked == "native" and problem:
        yield Check("wire", WRONG, f"native is asked for, but: {problem}", f"{compiler}; or set it to auto")
    elif asked == "pure":
        yield Check("wire", OK, "pure, as wire.implementation asks")
    elif problem:
        yield Check("wire", WARNING, f"pure, since the native one cannot be used: {problem}", compiler)
    else:
        yield Check("wire", OK, "native")


def look_at_descriptors(_: Survey) -> Iterator[Check]:
    """How many connections the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = hard == resource.RLIM_INFINITY or hard >= FEW_DESCRIPTORS
    words = f"{_limit(hard)} allowed (a broker takes all; now {_limit(soft)})"
    remedy = "" if many else f"raise the hard limit of open files above {FEW_DESCRIPTORS}: LimitNOFILE= or limits.conf"
    yield Check("descriptors", OK if many else WARNING, words, remedy)


def look_at_runtime_folder(found: Survey) -> Iterator[Check]:
    """Whether the folder of the sockets is private."""
    from scale0_core.config.folders import broker_context

    folder = Path(broker_context(found.core.broker, os.environ).runtime_dir)
    if len(str(folder)) > LONGEST_FOLDER:
        remedy = "set broker.runtime_dir to a shorter one"
        yield Check("runtime folder", WRONG, f"{folder} is too long: a socket in it could not be opened", remedy)
        return
    for place in (folder, folder.parent) if not found.core.broker.runtime_dir else (folder,):
        if place.exists() and (place.stat().st_uid != os.getuid() or place.stat().st_mode & 0o022):
            remedy = f"chmod 700 {place}, or set broker.runtime_dir to another"
            yield Check("runtime folder", WRONG, f"{place}: others own it or may write to it", remedy)
            return
    yield Check("runtime folder", OK, f"{folder} ({'private' if folder.exists() else 'made when a broker starts'})")


def look_at_config(found: Survey) -> Iterator[Check]:
    """Whether the configuration is valid."""
    if not found.faults:
        yield Check("configuration", OK, found.source)
    for fault in found.faults:
        yield Check("configuration", WRONG, f"{found.source}: {fault}", "mend it, then: scale0 config check")


def look_at_plugins(found: Survey) -> Iterator[Check]:
    """Whether all plugins can be used."""
    problems = [f for f in found.findings() if not f.problem.what.startswith(found.source)]  # said above
    for finding in problems:
        needed = found.enabled(finding.plugin)
        words = f"{finding.problem.what}: {finding.problem.why}"
        yield Check(f"plugin {finding.plugin}", WRONG if needed else WARNING, words, finding.problem.remedy)
    if not problems:
        usable = ", ".join(found.plugins.plugins) or "none installed"
        yield Check("plugins", OK, usable)


def look_at_stevedore(_: Survey) -> Iterator[Check]:
    """Whether stevedore's cache of entry points can be written."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "python-entrypoints"
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if os.access(nearest, os.W_OK):
        yield Check("stevedore cache", OK, str(folder))
    else:
        remedy = "set XDG_CACHE_HOME to a folder of your own, for a quicker start"
        yield Check("stevedore cache", WARNING, f"{folder} cannot be written", remedy)


def look_for_broker(found: Survey) -> Iterator[Check]:
    """Whether the broker runs."""
    from scale0_core.io.instance import BrokerName

    name = found.core.broker.name
    if sys.platform != "linux":
        yield Check("broker", OK, "whether it runs cannot be told on this platform")
        return
    pid = BrokerName(name).holder()
    where = f"runs as process {pid}" if pid else "does not run" if pid is None else "runs"
    yield Check("broker", OK, f"{name} {where}")


LOOKS: tuple[Callable[[Survey], Iterator[Check]], ...] = (
    look_at_python,
    look_at_zmq,
    look_at_wire,
    look_at_descriptors,
    look_at_runtime_folder,
    look_at_config,
    look_at_plugins,
    look_at_stevedore,
    look_for_broker,
)


def _show(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = click.style(f"{check.state:7}", fg=COLORS[check.state])
        click.echo(f"{state}  {check.name:{width}}  {check.found}")
        if check.remedy:
            click.echo(f"{'':7}  {'':{width}}  {click.style('next:', dim=True)} {check.remedy}")
    wrong, warnings = (sum(check.state == state for check in checks) for state in (WRONG, WARNING))
    click.echo(f"\n{wrong} wrong, {warnings} to look at" if wrong or warnings else "\nall is well")


def _limit(number: int) -> str:
    import resource

    return "any number" if number == resource.RLIM_INFINITY else str(number)
