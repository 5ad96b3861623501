"""The command `scale0 zpipes`: use pipes from a shell."""
# does I/O: it is an application

from __future__ import annotations

import os
import secrets
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scale0_core.api import records
from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_zpipes.client import PipeReader

FIX = "start a broker with the plugin zpipes: scale0 broker; or choose one: --broker NAME|ADDRESS"
STDIN, STDOUT = 0, 1
BLOCK = 65536
PIPE_CLOSED = 141
LOOK = 0.3
"""Seconds between two looks whether a writer that was there has gone."""
LEASE = 60.0
"""Seconds for which the broker remembers a tail that it does not hear of."""

COLUMNS = {
    "name": "name", "chunks": "chunks", "bytes": "bytes", "write_rate": "in/s", "read_rate": "out/s",
    "readers": "readers", "writers": "writers", "links": "links", "durable": "durable", "idle": "idle",
    "dialect": "dialect",
}  # fmt: skip

GROUP_COLUMNS = {"name": "name", "next": "next", "chunks": "chunks", "bytes": "bytes", "lease": "lease"}

_broker = kit.broker_option("-n", "--name", "--address")
_timeout = click.option(
    "--timeout", default=5.0, show_default=True, metavar="S", type=kit.Seconds(0),
    help="Seconds to reach the broker, and for which it may be away.",
)  # fmt: skip


def _as_bytes(_: click.Context, __: click.Parameter, value: str) -> bytes:
    name = os.fsencode(value)
    if not 1 <= len(name) <= 255:
        raise click.BadParameter("a name has 1 to 255 bytes")
    return name


_pipe = click.argument("pipe", metavar="NAME", callback=_as_bytes)


@click.group()
def main() -> None:
    """Write and read pipes: named queues of chunks that the broker keeps.

    \b
    Examples:
      cat big | scale0 zpipes write x          # one side
      scale0 zpipes read x > copy              # the other, byte by byte the same
      scale0 zpipes write jobs --lines < list  # each line is a chunk
      scale0 zpipes read jobs --lines --follow | while read job; do ...; done
      scale0 zpipes ls
    """  # noqa: D301


# --- write ------------------------------------------------------------------------------------------------------------


@main.command()
@_pipe
@click.option("--raw", "mode", flag_value="raw", help="Blocks of up to 64 KiB; the default unless stdin is a terminal.")
@click.option("--lines", "mode", flag_value="lines", help="Each line is a chunk, without its line feed.")
@click.option("--whole", "mode", flag_value="whole", help="All of stdin is one chunk.")
@click.option("--end/--no-end", default=None, help="Write an end mark, an empty chunk; the default with --raw only.")
@_broker
@_timeout
def write(*, pipe: bytes, mode: str | None, end: bool | None, broker: str | None, timeout: float) -> None:
    """Write stdin to the pipe NAME. Waits as long as the pipe is full.

    \b
    Examples:
      cat big | scale0 zpipes write x
      tail -f log | scale0 zpipes write lines --lines
      scale0 zpipes write job --whole < order.json
    """  # noqa: D301
    from scale0_zpipes.client import Pipe

    mode = mode or ("lines" if sys.stdin.isatty() else "raw")
    if end and mode == "lines":
        raise kit.UsageError(
            "--end and --lines do not go together", "the end mark is an empty chunk, which is an empty line, too",
            "nothing was written", "use --raw, or leave out --end",
        )  # fmt: skip
    with (
        _until_a_signal(),
        Pipe.open(pipe, "w", broker=kit.chosen_broker(broker), timeout=timeout) as writer,
        _progress(pipe, reading=False) as passed,
    ):
        for chunk in _CHUNKS[mode]():
            writer.write(chunk)
            passed(len(chunk))
        if end or (end is None and mode == "raw"):
            writer.write(b"")
        _flush(writer.flush)


def _flush(flush: Callable[[float], None]) -> None:
    """Wait until all is stored, however long the pipe is full."""
    from scale0_zpipes.client import PipeFullError

    while True:
        try:
            flush(1.0)
        except PipeFullError:
            continue
        return


def _blocks() -> Iterator[bytes]:
    while block := os.read(STDIN, BLOCK):
        yield block


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


def _whole() -> Iterator[bytes]:
    yield sys.stdin.buffer.read()


_CHUNKS: dict[str, Callable[[], Iterator[bytes]]] = {"raw": _blocks, "lines": _lines, "whole": _whole}


# --- read -------------------------------------------------------------------------------------------------------------


@main.command()
@_pipe
@click.option("--follow", is_flag=True, help="Never end: wait for more, past end marks. Ctrl-C ends it.")
@click.option("--wait", is_flag=True, help="Wait for a writer, and end at its end mark only, as a fifo is read.")
@click.option("--lines", is_flag=True, help="Write a line feed after each chunk; an empty one is an empty line.")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many chunks.")
@_broker
@_timeout
def read(
    *, pipe: bytes, follow: bool, wait: bool, lines: bool, count: int | None, broker: str | None,
    timeout: float,
) -> None:  # fmt: skip
    """Take the chunks out of the pipe NAME and write them to stdout.

    Ends at an end mark, or when the pipe is empty and nobody else has it open. Ends with 1 when nothing was there. A
    chunk is gone from the pipe when it was written to stdout.

    \b
    Examples:
      scale0 zpipes read x > copy
      scale0 zpipes read x --wait | tar x      # may be started before the writer
      scale0 zpipes read jobs --lines --count 1
    """  # noqa: D301
    from scale0_zpipes.client import Pipe

    found = False
    with (
        _until_a_signal(),
        _until_nobody_reads(),
        Pipe.open(pipe, "r", broker=kit.chosen_broker(broker), timeout=timeout) as reader,
        _progress(pipe, reading=True) as passed,
    ):
        taken = 0
        for chunk in _all_of(reader) if follow else _until_end(reader, wait=wait):
            found = True
            if chunk or lines:
                _write_out(chunk + b"\n" if lines else chunk)
                passed(len(chunk))
                taken += 1
            reader.done()
            if (not chunk and not lines and not follow) or taken == count:
                break
    if not found:
        kit.finish(kit.Exit.NEGATIVE)


def _all_of(reader: PipeReader) -> Iterator[bytes]:
    yield from reader


def _until_end(reader: PipeReader, *, wait: bool) -> Iterator[bytes]:
    """Give what is there, and what comes as long as somebody else has the pipe open."""
    from scale0_zpipes.client import PipeTimeoutError, Stage

    alone = False
    while True:
        got = False
        for chunk in reader.drain():
            got = True
            yield chunk
        if alone and not got:
            return
        # whoever was there may have written and gone after the pipe was empty: so one more look
        alone = not wait and reader.info()["links"] <= 1
        if alone:
            continue
        try:
            yield reader.read(LOOK)
        except PipeTimeoutError as error:
            if error.stage is not Stage.CHUNK:
                raise


@contextmanager
def _until_nobody_reads() -> Iterator[None]:
    """End as shells expect it when whoever reads stdout is gone; click would end with 1."""
    try:
        yield
    except BrokenPipeError:
        # so that the interpreter does not try to flush it
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        raise SystemExit(PIPE_CLOSED) from None


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """Clean up and end as shells expect it when this process is to end or its terminal is gone."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for other in found:
            signal.signal(other, signal.SIG_IGN)  # what is cleaned up has its own time limit
        raise SystemExit(128 + number)

    # nohup has one of them ignored, and so it stays
    found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    found = {number: handler for number, handler in found.items() if handler is signal.SIG_DFL}
    for number in found:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


def _write_out(data: bytes) -> None:
    """Write to stdout at once: what is acknowledged must have left."""
    left = memoryview(data)
    while left:
        left = left[os.write(STDOUT, left) :]


# --- the others -------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("prefix", default="")
@_broker
@_timeout
@kit.output_option
def ls(prefix: str, broker: str | None, timeout: float) -> None:
    """List the pipes, or those whose name begins with PREFIX.

    Rates are those since somebody last looked; idle is in seconds. A pipe of the binary dialect is a stream of bytes
    between one writer and one reader.

    \b
    Examples:
      scale0 zpipes ls
      scale0 zpipes ls orders. -o json
    """  # noqa: D301
    place = _pipes(broker)
    rows: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    after = b""
    while True:
        told = _ask(place, [b"LIST", os.fsencode(prefix), after], timeout)
        rows += [row | {"dialect": "text"} for row in told["pipes"]]
        streams += told.get("streams", [])
        if told["more"] is None:
            break
        after = bytes.fromhex(told["pipes"][-1]["id"])
    rows += [
        row | {"readers": int(row["has_reader"]), "writers": int(row["has_writer"]), "dialect": "binary"}
        for row in streams
        if bytes.fromhex(row["id"]).startswith(os.fsencode(prefix))
    ]
    rows.sort(key=lambda row: str(row["id"]))
    if kit.output_format() == "table":
        rows = [row | {"name": _safe(row["name"])} for row in rows]
    kit.emit("scale0.zpipes.pipes/1", rows, columns=COLUMNS)


@main.command()
@_pipe
@_broker
@_timeout
@kit.output_option
def info(pipe: bytes, broker: str | None, timeout: float) -> None:
    """Show all about the pipe NAME: what is in it, who uses it, its groups."""
    row = _ask(_pipes(broker), [b"INFO", pipe], timeout)
    kit.emit("scale0.zpipes.pipe/1", row, show=lambda: _show(row))


@main.command()
@_pipe
@_broker
@_timeout
@kit.output_option
def purge(pipe: bytes, broker: str | None, timeout: float) -> None:
    """Throw away all chunks of the pipe NAME; says how many."""
    answer = _answer(_pipes(broker), [b"PURGE", pipe], timeout)
    purged = int(answer[1])
    text = f"{purged} chunks of {_safe(pipe)} are gone"
    kit.emit("scale0.zpipes.purged/1", {"name": _safe(pipe), "purged": purged}, show=lambda: click.echo(text))


@main.command()
@_pipe
@_broker
@_timeout
@kit.output_option
def groups(pipe: bytes, broker: str | None, timeout: float) -> None:
    """List the reader groups of the pipe NAME, and how far each is behind.

    Chunks and bytes are those that wait for the group; next is the number of the first of them. A group that nobody
    uses any more keeps them until the pipe is full: scale0 zpipes ungroup removes it. One with a lease, of so many
    seconds, is forgotten by itself.

    \b
    Examples:
      scale0 zpipes groups events
      scale0 zpipes groups events -o json
    """  # noqa: D301
    rows = _ask(_pipes(broker), [b"GROUPS", pipe], timeout)["groups"]
    if kit.output_format() == "table":
        rows = [row | {"name": _safe(row["name"])} for row in rows]
    kit.emit("scale0.zpipes.groups/1", rows, columns=GROUP_COLUMNS)


@main.command()
@_pipe
@click.argument("group", metavar="GROUP", callback=_as_bytes)
@_broker
@_timeout
@kit.output_option
def ungroup(*, pipe: bytes, group: bytes, broker: str | None, timeout: float) -> None:
    """Remove the reader group GROUP of the pipe NAME, and what was kept for it alone.

    For a reader that is gone for good. A reader that comes back under this name begins anew.

    \b
    Examples:
      scale0 zpipes groups events              # which one is far behind?
      scale0 zpipes ungroup events spark-trends_minute
    """  # noqa: D301
    place = _pipes(broker)
    answer = kit.ask(place, [b"UNGROUP", pipe, group], timeout, remedy=FIX)
    if answer[:2] == [b"ERROR", b"404"]:
        what = f"pipe {_safe(pipe)} has no group {_safe(group)}"
        remedy = f"scale0 zpipes groups {_safe(pipe)} lists its groups"
        raise kit.NegativeError(what, b": ".join(answer[1:3]).decode(errors="replace"), "nothing was done", remedy)
    _checked(answer)
    left = _left(place, pipe, timeout)
    row = {"name": _safe(pipe), "group": _safe(group), "chunks": left["chunks"], "bytes": left["bytes"]}
    text = f"group {row['group']} is removed; left in {row['name']}: {row['chunks']} chunks, {row['bytes']} bytes"
    kit.emit("scale0.zpipes.ungrouped/1", row, show=lambda: click.echo(text))
    if left["chunks"] and not left["groups"]:
        kit.say("it was the last group, so what is left waits for the pipe's own reader")
        kit.say(f"scale0 zpipes purge {row['name']} throws it away")


def _left(place: str, pipe: bytes, timeout: float) -> dict[str, Any]:
    """Look at a pipe, which may be gone with its last group."""
    answer = kit.ask(place, [b"INFO", pipe], timeout, remedy=FIX)
    left: dict[str, Any] = {"chunks": 0, "bytes": 0, "groups": {}}
    return left if answer[:2] == [b"ERROR", b"404"] else records.object_from(_checked(answer)[1])


@main.command()
@_pipe
@click.option("--raw", is_flag=True, help="Write the chunks as they are, one after the other.")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many chunks.")
@_broker
@_timeout
@kit.output_option
def tail(*, pipe: bytes, raw: bool, count: int | None, broker: str | None, timeout: float) -> None:
    """Show what passes through the pipe NAME from now on, and leave it there for its reader. Ends by Ctrl-C.

    Its reader does not notice. When nothing is shown for a minute since stdout is not read, what passed meanwhile is
    left out.

    \b
    Examples:
      scale0 zpipes tail jobs
      scale0 zpipes tail jobs -o jsonl --count 10
    """  # noqa: D301
    from scale0_zpipes.client import Pipe

    chosen, group = kit.chosen_broker(broker), f"tail-{secrets.token_hex(8)}"
    with _until_a_signal():
        reader = Pipe.open(
            pipe, "r", broker=chosen, group=group, start="next", lease=LEASE, auto_ack=True, timeout=timeout
        )
        try:
            with _until_nobody_reads():
                for number, chunk in enumerate(reader, 1):
                    if raw:
                        _write_out(chunk)
                    else:
                        _show_chunk(reader.number, chunk)
                    if number == count:
                        break
        except KeyboardInterrupt:
            pass
        finally:
            reader.close(drop_group=True)


def _show_chunk(number: int, chunk: bytes) -> None:
    from scale0_core.api import printable

    text = chunk.decode("utf-8", "backslashreplace")
    row = {"number": number, "bytes": len(chunk), "chunk": text}
    line = f"{number:>8}  {len(chunk):>8}  {printable(text, 200)}"
    kit.emit("scale0.zpipes.chunk/1", row, show=lambda: click.echo(line))


def _show(row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key == "groups":
            for group, state in value.items():
                click.echo(f"{'group':11}  {_safe(group)}, next {state['next']}")
        elif key != "id":
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            click.echo(f"{key:11}  {_safe(str(shown))}")


# --- asking -----------------------------------------------------------------------------------------------------------


def _pipes(broker: str | None) -> str:
    """Return where the broker's pipes are."""
    return kit.address_at(broker, "zpipes", "pipes")


def _ask(place: str, request: list[bytes], timeout: float) -> dict[str, Any]:
    return records.object_from(_answer(place, request, timeout)[1])


def _answer(place: str, request: list[bytes], timeout: float) -> list[bytes]:
    return _checked(kit.ask(place, request, timeout, remedy=FIX))


def _checked(answer: list[bytes]) -> list[bytes]:
    if answer[0] == b"ERROR":
        why = b": ".join(answer[1:3]).decode(errors="replace")
        raise kit.NegativeError("the broker refuses", why, "nothing was done", "scale0 zpipes ls lists the pipes")
    return answer


def _safe(value: str | bytes) -> str:
    from scale0_core.api import printable

    return printable(value, 2000)


# --- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(pipe: bytes, *, reading: bool) -> Iterator[Callable[[int], None]]:
    """Show bytes and rate on stderr, where a person sees it and nothing else is shown there."""
    data = STDOUT if reading else STDIN
    if not sys.stderr.isatty() or os.isatty(data):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    status = os.fstat(data)
    total = status.st_size if not reading and stat.S_ISREG(status.st_mode) else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[rate]}/s"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(_safe(pipe), total=total, rate="0 bytes")
        passed = _Passed(lambda size, rate: progress.update(task, completed=size, rate=decimal(int(rate))))
        try:
            yield passed.add
        finally:
            passed.show()


class _Passed:
    """Counts, and shows it now and then."""

    def __init__(self, show: Callable[[int, float], None]) -> None:
        self._show = show
        self._size = 0
        self._began = self._shown = time.monotonic()

    def add(self, size: int) -> None:
        self._size += size
        if time.monotonic() - self._shown > 0.1:
            self.show()

    def show(self) -> None:
        self._shown = time.monotonic()
        self._show(self._size, self._size / max(self._shown - self._began, 0.001))
