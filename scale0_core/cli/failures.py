"""How a failure is shown, and which exit code it gives. Imported when something has failed, not before."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from scale0_core.errors import Exit, Problem, Scale0Error

INTERRUPTED = 130
PIPE_CLOSED = 141

PARTS = (("why", "why"), ("consequence", "consequence"), ("next", "remedy"))
"""The parts of a problem below its first line: the word people see, the name in a Problem and in JSON."""


def report(error: BaseException, arguments: Sequence[str] = ()) -> int:
    """Show a failure on stderr and give the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return _closed_pipe()
    if isinstance(error, click.UsageError) and type(error).__name__ == "NoArgsIsHelpError" and error.ctx:
        click.echo(error.ctx.get_help(), err=True)  # a group without a command, by click 8.2 and later
        return int(Exit.USAGE)
    problem, code = explained(error)
    if debugging(arguments):
        traceback.print_exception(error)
    if wants_json(arguments):
        sys.stderr.write(json.dumps(as_json(error, problem, code), ensure_ascii=False) + "\n")
    else:
        click.echo(as_text(problem), err=True, color=False if os.environ.get("NO_COLOR") else None)
    return int(code)


def explained(error: BaseException) -> tuple[Problem, Exit]:
    """Put any error into four parts, and choose its exit code."""
    if isinstance(error, Scale0Error):
        return error.problem, error.exit_code
    if isinstance(error, click.UsageError):
        return _usage_problem(error), Exit.USAGE
    if isinstance(error, click.ClickException):
        return Problem(error.format_message(), "", "nothing was done", "scale0 --help"), Exit.NEGATIVE
    if isinstance(error, PermissionError):
        what = f"this user may not use {error.filename}" if error.filename else "this user may not do that"
        problem = Problem(what, error.strerror or "", "nothing more was done", "choose another place or user")
        return problem, Exit.PERMISSION
    return _bug(error), Exit.BUG


def as_text(problem: Problem, title: str = "error", color: str = "red") -> str:
    """Write a problem for people: what, and below it why, the consequence and what to do next."""
    lines = [click.style(f"{title}: ", fg=color, bold=True) + problem.what]
    for label, name in PARTS:
        for number, line in enumerate(getattr(problem, name).splitlines()):
            lines.append(f"  {click.style(f'{label:11}', dim=True) if number == 0 else ' ' * 11}  {line}")
    return "\n".join(lines)


def as_json(error: BaseException, problem: Problem, code: Exit) -> dict[str, Any]:
    """Write a problem for machines."""
    told: dict[str, Any] = {"schema": "scale0.error/1", "error": type(error).__name__, "exit": int(code)}
    told.update(what=problem.what, why=problem.why, consequence=problem.consequence, remedy=problem.remedy)
    return {**told, **(error.details() if isinstance(error, Scale0Error) else {})}


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether -o json was asked for; looked up by hand, since an error may come before click understood it."""
    line = " ".join(itertools.takewhile(lambda argument: argument != "--", arguments))
    return re.search(r"(^| )(-o ?|--output[ =])jsonl?( |$)", line) is not None


def debugging(arguments: Sequence[str]) -> bool:
    """Tell whether a traceback is wanted."""
    return "--debug" in arguments[:1] or os.environ.get("SCALE0_DEBUG", "") not in ("", "0")


def _usage_problem(error: click.UsageError) -> Problem:
    path = error.ctx.command_path if error.ctx else "scale0"
    usage = error.ctx.get_usage() if error.ctx else ""
    return Problem(error.format_message().rstrip("."), usage, "nothing was done", f"{path} --help")


def _bug(error: BaseException) -> Problem:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return Problem(
        f"scale0 failed in a way nobody planned: {type(error).__name__}: {error}",
        f"this is a bug in scale0 or in a plugin{place}",
        "the command did not end its work",
        "please report it, with what SCALE0_DEBUG=1 shows when you run the command again",
    )


def _closed_pipe() -> int:
    """Be quiet, as whoever read our output wants no more of it."""
    # so that the interpreter, when it flushes stdout at its end, does not complain
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return PIPE_CLOSED
