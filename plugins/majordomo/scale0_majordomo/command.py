"""The command `scale0 majordomo`: call services and offer them from a shell."""
# does I/O: it is an application

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_majordomo.client import Client, Request

FIX = "start a broker with the plugin majordomo: scale0 broker; or choose one: --broker NAME|ADDRESS"
LONGEST_CONNECT = 5.0
LOOK = 0.1
"""Seconds between two looks whether the caller of a command that runs has given up."""

SERVICE_COLUMNS = {
    "service": "service", "workers": "workers", "waiting": "waiting", "in_hand": "in hand", "requests": "requests",
    "replies": "replies", "errors": "errors", "retried": "retried", "expired": "expired", "refused": "refused",
}  # fmt: skip
WORKER_COLUMNS = {
    "service": "service", "worker": "worker", "dialect": "dialect", "credit": "credit", "in_hand": "in hand",
}  # fmt: skip

_broker = kit.broker_option("--address")
_short_timeout = click.option(
    "--timeout", default=5.0, show_default=True, metavar="S", type=kit.Seconds(), help="Seconds in all."
)
_seconds = kit.Seconds()


@click.group()
def main() -> None:
    """Call services and offer them; the broker brings requests and workers together.

    \b
    Examples:
      scale0 majordomo worker upper -- tr a-z A-Z   # one side
      scale0 majordomo call upper hello             # the other
      scale0 majordomo services
      scale0 majordomo bench
    """  # noqa: D301


# --- call -------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("service")
@click.argument("body", nargs=-1)
@click.option("--stream", is_flag=True, help="Write the parts of the reply as they come.")
@click.option("--timeout", default=30.0, show_default=True, metavar="S", type=_seconds, help="Seconds in all.")
@click.option("--retry", is_flag=True, help="The service may be called twice: try again when a worker or broker dies.")
@click.option("--priority", default=0, metavar="N", help="Larger is sooner, where the service is scheduled so.")
@click.option("--key", default="", metavar="TEXT", help="Always the same worker, where the service is scheduled so.")
@click.option("--traceparent", default="", metavar="TRACE", help="The W3C trace this belongs to.")
@_broker
@kit.output_option
def call(
    *, service: str, body: tuple[str, ...], stream: bool, timeout: float, retry: bool, priority: int, key: str,
    traceparent: str, broker: str | None,
) -> None:  # fmt: skip
    """Call SERVICE with BODY, each word a frame of its own, and write the reply to stdout.

    Without a body, or with -, it is read from stdin.

    \b
    Examples:
      scale0 majordomo call upper hello
      scale0 majordomo call resize < photo.jpg > small.jpg
      scale0 majordomo call report 2026 --stream --timeout 600
      scale0 majordomo call upper hello -o json
    """  # noqa: D301
    frames = [os.fsencode(word) for word in body]
    with _client(broker, timeout) as client:
        if frames in ([], [b"-"]):
            frames = [sys.stdin.buffer.read()]
        began = time.perf_counter()
        try:
            parts = client.stream(
                service, *frames, retry=retry or None, priority=priority, key=key, traceparent=traceparent
            )
        except ValueError as error:
            raise kit.UsageError(str(error), "", "nothing was sent", "scale0 majordomo call --help") from error
        if kit.output_format() == "table" or (stream and kit.output_format() == "jsonl"):
            for part in parts if stream else [*parts]:
                _show_part(service, part)
            return
        reply = [frame for part in parts for frame in part]
    told = {"service": service, "reply": _texts(reply)}
    kit.emit("scale0.majordomo.reply/1", {**told, "ms": round((time.perf_counter() - began) * 1000, 3)})


def _show_part(service: str, part: tuple[bytes, ...]) -> None:
    if kit.output_format() == "jsonl":
        kit.emit("scale0.majordomo.part/1", {"service": service, "part": _texts(part)})
    else:
        sys.stdout.buffer.write(b"".join(part))
    sys.stdout.flush()


def _texts(frames: tuple[bytes, ...] | list[bytes]) -> list[str]:
    return [frame.decode(errors="replace") for frame in frames]


# --- what there is ----------------------------------------------------------------------------------------------------


@main.command()
@_broker
@_short_timeout
@kit.output_option
def services(broker: str | None, timeout: float) -> None:
    """List the services, with their workers and what waits for them.

    \b
    Examples:
      scale0 majordomo services
      scale0 majordomo services -o jsonl | jq 'select(.waiting > 100) | .service'
    """  # noqa: D301
    with _client(broker, timeout) as client:
        rows = [{"service": name, **figures} for name, figures in client.services().items()]
    kit.emit("scale0.majordomo.services/1", _printable(rows), columns=SERVICE_COLUMNS)


@main.command()
@click.argument("service", default="")
@_broker
@_short_timeout
@kit.output_option
def workers(service: str, broker: str | None, timeout: float) -> None:
    """List the workers, or those of SERVICE. Ends with 1 when a service is named that has none.

    \b
    Examples:
      scale0 majordomo workers
      scale0 majordomo workers upper -o json
    """  # noqa: D301
    with _client(broker, timeout) as client:
        rows = client.workers(service)
    kit.emit("scale0.majordomo.workers/1", _printable(rows), columns=WORKER_COLUMNS)
    if service and not rows:
        kit.finish(kit.Exit.NEGATIVE)


def _printable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make names from outside harmless for a terminal."""
    if kit.output_format() != "table":
        return rows
    from scale0_core.api import printable

    return [row | {"service": printable(row["service"], 255)} for row in rows]


# --- worker -----------------------------------------------------------------------------------------------------------


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("service")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--credit", default=1, show_default=True, type=click.IntRange(1, 256), help="Requests at once.")
@click.option("--timeout", type=_seconds, metavar="S", help="Seconds after which a run of COMMAND is ended.")
@click.option("--wait", is_flag=True, help="Wait for a broker that is not there yet.")
@_broker
def worker(
    *, service: str, command: tuple[str, ...], credit: int, timeout: float | None, wait: bool, broker: str | None
) -> None:
    """Offer SERVICE by running COMMAND for each request.

    The request is its standard input, its standard output the reply. When it ends with another code than 0, the caller
    gets an error with what it wrote to stderr. It is killed when the caller gives up. TERM or INT ends the worker once
    its requests are done. Without a broker at a local address it ends with 69, unless --wait is given.

    \b
    Examples:
      scale0 majordomo worker upper -- tr a-z A-Z
      scale0 majordomo worker resize --credit 4 -- convert - -resize 50% -
    """  # noqa: D301
    from scale0_core.client.kit.route import target
    from scale0_majordomo.client import Worker

    chosen = kit.chosen_broker(broker, "default" if wait else "")
    if not wait:
        kit.insist_on_listener(target(chosen, "majordomo", "requests"), "nothing is served", "start it, or use --wait")
    serving = Worker(chosen, credit=credit)
    try:
        serving.add(service, _runner(command, timeout))
    except ValueError as error:
        raise kit.UsageError(str(error), "", "nothing is offered", "choose another name") from error
    kit.say(f"serving {service} at broker {chosen}; Ctrl-C ends it")
    serving.run()


def _runner(command: tuple[str, ...], timeout: float | None) -> Callable[[Request], bytes]:
    def run(request: Request) -> bytes:
        began = time.monotonic()
        with subprocess.Popen(  # noqa: S603  running it is what the user asked for
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the worker, which lets the command finish
        ) as process:  # fmt: skip
            data: bytes | None = request.body
            while True:
                try:
                    told, complaint = process.communicate(data, LOOK)
                    break
                except subprocess.TimeoutExpired:
                    data = None
                late = timeout is not None and time.monotonic() - began > timeout
                if request.cancelled or late:
                    os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                    process.communicate()
                    raise RuntimeError(f"{command[0]} was ended: {f'{timeout:g} s are over' if late else 'cancelled'}")
        if process.returncode:
            text = complaint.decode(errors="replace").strip()[-1000:]
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {text}")
        return told

    return run


# --- bench ------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("service", default="")
@click.option("-n", "--requests", default=10_000, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--window", default=1000, show_default=True, type=click.IntRange(min=1), help="How many at once.")
@click.option("--size", default=100, show_default=True, type=click.IntRange(min=0), help="Bytes of each.")
@click.option("--timeout", default=30.0, show_default=True, metavar="S", type=_seconds, help="Seconds for each.")
@_broker
@kit.output_option
def bench(service: str, requests: int, window: int, size: int, timeout: float, broker: str | None) -> None:
    """Call SERVICE many times, and tell how fast it is; without one, an echo that this command offers itself.

    \b
    Examples:
      scale0 majordomo bench
      scale0 majordomo bench upper -n 1000 --window 10 -o json
    """  # noqa: D301
    from scale0_majordomo.client import Worker

    echo = Worker(kit.chosen_broker(broker), credit=min(window, 1000), threads=1)
    own = service or f"bench.{secrets.token_hex(4)}"
    if not service:
        echo.add(own, lambda request: request)
    with _client(broker, timeout) as client, echo:
        echo.wait_ready(timeout)
        row = _measure(client, own, requests, window, bytes(size))
    figures = {"service": own, "requests": requests, "window": window, "size": size, **row}
    kit.emit("scale0.majordomo.bench/1", figures)


def _measure(client: Client, service: str, requests: int, window: int, payload: bytes) -> dict[str, float]:
    starts: list[float] = []

    def items() -> Iterator[bytes]:
        for _ in range(requests):
            starts.append(time.perf_counter())
            yield payload

    latencies = [
        time.perf_counter() - starts[reply.number]
        for reply in client.map(service, items(), window=window, ordered=False)
    ]
    seconds = time.perf_counter() - starts[0]
    latencies.sort()
    return {
        "seconds": round(seconds, 3),
        "req_per_s": round(requests / seconds),
        "p50_ms": round(latencies[len(latencies) // 2] * 1000, 3),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1000, 3),
    }


# --- the broker -------------------------------------------------------------------------------------------------------


def _client(broker: str | None, timeout: float) -> Client:
    """Make a client; an error says at once that nobody is there."""
    from scale0_majordomo.client import Client

    chosen = kit.chosen_broker(broker)
    with kit.connected(kit.address_at(chosen, "majordomo", "requests"), min(timeout, LONGEST_CONNECT), FIX):
        pass
    return Client(chosen, timeout=timeout)
