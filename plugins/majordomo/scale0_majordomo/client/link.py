"""One connection to a broker, and the engine that runs a session on it: the core's, but for the size of messages."""

# does I/O: sockets

from __future__ import annotations

import zmq

from scale0_core.api import Scale0Error, get_logger
from scale0_core.client import link as core

LOG = get_logger("majordomo.client")

OPTIONS = {
    **core.OPTIONS,
    # how large a message may be is the broker's to say
    zmq.MAXMSGSIZE: -1,
    # what comes was asked for here, so there is room
    zmq.RCVHWM: 0,
    # beyond that, messages wait where it is seen that they do
    zmq.SNDHWM: 1000,
}

_exit = type(Scale0Error.exit_code)


class AddressError(Scale0Error):
    """There is no way to connect to an address."""

    exit_code = _exit(69)


class Link(core.Link):
    """A DEALER socket for one connection, and the monitor that tells when it came about and when it broke."""

    options = OPTIONS

    def __init__(self, context: zmq.Context[core.Socket], address: str, linger_ms: int) -> None:
        try:
            super().__init__(context, address, linger_ms)
        except Scale0Error as error:
            example = "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path"
            problem = error.problem
            raise AddressError(problem.what, problem.why, problem.consequence, example) from error


class Engine(core.Engine):
    """Runs a session: whoever drives it calls ``turn`` when there is something to read or the deadline has come."""

    def start(self) -> None:
        """Begin to connect; raises an AddressError when the address is no address."""
        try:
            super().start()
        except AddressError:
            self.close()
            raise

    def _try_to_open(self) -> None:
        try:
            self._reopen()
        except AddressError as error:
            LOG.error(error.problem.what, why=error.problem.why)
            self._pause()

    def _reopen(self) -> None:
        old, self.link, self._again_at = self.link, None, None
        self._connection = self.dialog.connection
        try:
            if self.dialog.address:
                self.link = Link(self._context, self.dialog.address, self._linger_ms)
        finally:
            self._replaced(old)
