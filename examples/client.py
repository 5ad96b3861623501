"""A client of ``examples/worker.py``: ``python examples/client.py [BROKER]``."""

import sys

from scale0_core.client import Client

with Client(*sys.argv[1:]) as client:
    print(client.call("upper", b"hello", retry=True).text)
