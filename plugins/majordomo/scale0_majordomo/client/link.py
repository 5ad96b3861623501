"""One connection to a broker, and the engine that runs a session on it: the core's, but for the size of messages."""

# does I/O: sockets

from __future__ import annotations

from typing import ClassVar

import zmq

from scale0_core.client import link as core


class Link(core.Link):
    """A DEALER socket for one connection, and the monitor that tells when it came about and when it broke."""

    options: ClassVar[dict[int, int]] = {
        **core.OPTIONS,
        # how large a message may be is the broker's to say
        zmq.MAXMSGSIZE: -1,
        # what comes was asked for here, so there is room
        zmq.RCVHWM: 0,
        # beyond that, messages wait where it is seen that they do
        zmq.SNDHWM: 1000,
    }


class Engine(core.Engine):
    """Runs a session: whoever drives it calls ``turn`` when there is something to read or the deadline has come."""

    link_type = Link
