"""Small programs in tests: one that is killed right after something it said, and one in a forked child."""

# does I/O: starts and kills processes

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

SECONDS = 60.0
"""How long a program may take for what it is waited for; then it is killed, and the test fails."""


def killed_program(
    source: str,
    arguments: Sequence[object],
    environment: Mapping[str, str],
    until: Callable[[list[str]], bool],
    seconds: float = SECONDS,
) -> list[str]:
    """Run a Python program, kill it as soon as ``until`` is true of the lines it has written, and return all of them.

    ``until`` is asked after each line. What the program wrote before it was killed counts, also if it was read later.
    Raise AssertionError if the program ends by itself, or is not killed in time.
    """
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-u", "-c", source, *map(str, arguments)],
                env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        late = threading.Timer(seconds, program.kill)
        late.start()
        stack.callback(late.cancel)
        stack.callback(program.kill)
        assert program.stdout is not None
        lines: list[str] = []
        while line := program.stdout.readline():
            lines.append(line.rstrip("\n"))
            if until(lines):
                program.kill()
                rest, _ = program.communicate(timeout=seconds)
                return [*lines, *rest.splitlines()]
        _, complaints = program.communicate(timeout=seconds)
        raise AssertionError(f"the program ended, or took more than {seconds:g} s: {complaints}")


def in_forked_child(function: Callable[[], object], seconds: float = 20.0) -> str:
    """Run a function in a forked child and return what it raised; a child that hangs is killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(seconds))  # kills it
            try:
                function()
                raised = "nothing was raised"
            except BaseException as error:
                raised = f"{type(error).__name__}: {error}"
            os.write(writing, raised.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        raised = file.read()  # the alarm ends it in any case
    _, status = os.waitpid(pid, 0)
    return raised or f"the child hung, or died: {status}"
