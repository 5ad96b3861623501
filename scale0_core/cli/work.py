"""Commands that use services from a shell: call and serve."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import click

from scale0_core.cli import kit


def _name(context: click.Context, argument: click.Parameter, service: str) -> str:
    """Check the name of a service."""
    from scale0_core.protocol.options import LONGEST_SERVICE

    if not 0 < len(service.encode(errors="surrogateescape")) <= LONGEST_SERVICE:
        raise click.BadParameter(f"the name of a service has 1 to {LONGEST_SERVICE} bytes")
    return service


@click.command()
@click.argument("service", callback=_name)
@click.argument("payload", nargs=-1)
@click.option("--timeout", default=30.0, show_default=True, type=kit.Seconds(), help="Seconds.")
@click.option("--retry", is_flag=True, help="The service may be called twice: try again when a worker dies.")
@kit.broker_option()
@kit.output_option
def call(service: str, payload: tuple[str, ...], timeout: float, retry: bool, broker: str | None) -> None:
    """Call SERVICE with PAYLOAD, each word a frame of its own, and write the reply to stdout.

    Without a payload, or with -, it is read from stdin. A reply that comes in parts is written as it comes.
    """
    from scale0_core.client import Client
    from scale0_core.client.kit.route import target

    chosen = kit.chosen_broker(broker)
    frames = [word.encode(errors="surrogateescape") for word in payload]
    if frames in ([], [b"-"]):
        kit.insist_on_listener(target(chosen, "scale0", "frontend"))
        frames = [sys.stdin.buffer.read()]
    began = time.perf_counter()
    with Client(chosen, timeout=timeout) as client:
        if kit.output_format() == "table":
            for part in client.stream(service, *frames, retry=retry):
                sys.stdout.buffer.write(part.body)
                sys.stdout.buffer.flush()
            return
        reply = client.call(service, *frames, retry=retry)
    told = {"service": service, "reply": [frame.decode(errors="replace") for frame in reply]}
    kit.emit("scale0.call/1", {**told, "ms": round((time.perf_counter() - began) * 1000, 3)})


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("service", callback=_name)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 256), help="Tasks at once.")
@click.option("--identity", metavar="NAME", help="Who this is, unique among workers.")
@click.option("--version", "version", default="", help="The version of what it serves.")
@click.option("--timeout", type=kit.Seconds(), help="Seconds after which a run of COMMAND is ended.")
@click.option("--wait", is_flag=True, help="Wait for a broker that is not there yet.")
@kit.broker_option()
def serve(
    *, service: str, command: tuple[str, ...], concurrency: int, identity: str | None, version: str,
    timeout: float | None, wait: bool, broker: str | None,
) -> None:  # fmt: skip
    """Offer SERVICE by running COMMAND for each task: scale0 serve upper -- tr a-z A-Z.

    The payload is its standard input, its standard output is the reply. When it ends with another code than 0, the
    caller gets an error with what it wrote to stderr. TERM or INT ends the worker once its tasks are done. Without a
    broker at a local address it ends with 69, unless --wait is given; later on it waits for its broker to come back.
    """
    from scale0_core.client import Worker
    from scale0_core.client.kit.route import target

    chosen = kit.chosen_broker(broker, "default" if wait else "")
    if not wait:
        kit.insist_on_listener(target(chosen, "scale0", "frontend"), "nothing is served", "start it, or use --wait")
    worker = Worker(chosen, concurrency=concurrency, identity=identity, version=version)
    worker.add(service, _runner(command, timeout))
    kit.say(f"serving {service} at broker {chosen} as {worker.identity}; Ctrl-C ends it")
    worker.run()


def _runner(command: tuple[str, ...], timeout: float | None) -> Callable[..., bytes]:
    def run(*frames: bytes) -> bytes:
        ended = subprocess.run(  # noqa: S603  running it is what the user asked for
            list(command), input=b"".join(frames), capture_output=True, timeout=timeout, check=False
        )
        if ended.returncode:
            told = ended.stderr.decode(errors="replace").strip()[-1000:]
            raise RuntimeError(f"{command[0]} ended with {ended.returncode}: {told}")
        return ended.stdout

    return run
