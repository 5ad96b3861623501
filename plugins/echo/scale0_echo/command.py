"""The command `scale0 echo`: talk to the service from a shell."""
# does I/O: it is an application

from __future__ import annotations

import time

import click

from scale0_core.api import printable
from scale0_core.cli import kit


@click.command()
@kit.broker_option("--name", "--address")
@click.option("--later", metavar="MS", type=click.IntRange(0, 3_600_000), help="Have it back after MS milliseconds.")
@click.option("--digest", is_flag=True, help="Ask for the SHA-256 of the text instead.")
@click.option("--timeout", default=5.0, show_default=True, metavar="S", type=kit.Seconds(0), help="Seconds.")
@click.argument("text", nargs=-1, required=True)
@kit.output_option
def main(broker: str | None, later: int | None, text: tuple[str, ...], timeout: float, *, digest: bool) -> None:
    """Send TEXT to the echo service and print the answer; each word is a frame of its own."""
    from scale0_core.client.kit.route import address_of

    if digest and later is not None:
        raise kit.UsageError(
            "--digest and --later exclude each other", "a request has one command", "nothing was sent", "leave one out"
        )
    address = kit.address_at(broker, "echo", "requests")
    command = b"DIGEST" if digest else b"ECHO" if later is None else b"LATER"
    options = b"" if later is None else str(later).encode()
    body = [word.encode(errors="surrogateescape") for word in text]
    start = time.perf_counter()
    answer = kit.ask(address, [command, options, *body], timeout, patience=timeout + (later or 0) / 1000)
    milliseconds = round((time.perf_counter() - start) * 1000, 3)
    if len(answer) == 3 and answer[0] == b"ERROR" and answer != body:
        code, reason = (frame.decode(errors="replace") for frame in answer[1:])
        raise kit.NegativeError(f"{address} refuses", f"{code}: {reason}", "there is no answer", "scale0 echo --help")
    with kit.understanding(address):
        if answer != body and not (digest and len(answer) == 1):
            raise ValueError(f"it is not what was sent, but {printable(answer)}")
    words = [frame.decode(errors="replace") for frame in answer]
    told = {"address": address_of(address), "answer": words, "ms": milliseconds}
    kit.emit("scale0.echo/1", told, show=lambda: click.echo(" ".join(words)))
