"""A worker: ``python examples/worker.py [BROKER]``, where BROKER is a name or the address of a broker's frontend."""

import sys

from scale0_core.client import Worker

worker = Worker(*sys.argv[1:])


@worker.service("upper")
def upper(text: bytes) -> bytes:
    return text.upper()


worker.run()
