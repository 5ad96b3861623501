"""Majordomo: ``python examples/majordomo.py [BROKER]`` offers services and calls them."""

import sys
import time
from collections.abc import Iterator

from scale0_majordomo import CallTimedOutError, Client, RemoteError, Request, Worker

broker = sys.argv[1] if len(sys.argv) > 1 else "default"
worker = Worker(broker, credit=8)


@worker.service("example.upper")
def upper(request: Request) -> str:
    return request.text.upper()


@worker.service("example.count")
def count(request: Request) -> Iterator[str]:
    for number in range(int(request.text)):
        yield str(number)


@worker.service("example.slow")
def slow(request: Request) -> None:
    while not request.cancelled:  # the caller has given up
        time.sleep(0.01)


with worker, Client(broker) as client:
    print(client.call("example.upper", "hello").text)

    # many at once
    print(sum(len(reply.body) for reply in client.map("example.upper", ["x"] * 1000)), "bytes")

    # a reply in parts
    print(*(part.text for part in client.stream("example.count", "5")))

    # what goes wrong is told
    try:
        client.call("example.count", "many")
    except RemoteError as error:
        print(error.code, error.message)
    try:
        client.call("example.slow", timeout=0.2)
    except CallTimedOutError as error:
        print(error.code, "timed out")

    for row in client.workers():
        print(row["service"], row["credit"])
