"""The music broker: a state machine without I/O, on two ROUTER sockets that talk to REQ and DEALER peers alike.

Servers announce themselves on ``servers``:

=============================  ==========================================================================
a server says                  the answer
=============================  ==========================================================================
`ENDPOINT`                     `OK` (the original's words; it is not heard of again)
`ENDPOINT`, JSON report        `OK`, JSON {lease_ms, father: {id, children_endpoint} or null, root, refused?}
`bye`, `ENDPOINT` [, {id}]     `OK`
=============================  ==========================================================================

Clients ask for a server on ``clients``:

=============================  ==========================================================================
a client says                  the answer
=============================  ==========================================================================
`hello`                        `hello`, `ENDPOINT`, or `bye` when there is no server (the original's words)
`ZMQ01 hello` tag {avoid}      `ZMQ01 hello` tag {id, endpoint}, or `ZMQ01 bye` tag {retry_ms}
`ZMQ01 servers` tag [{...}]    `ZMQ01 servers` tag, a list of rows; {offset, limit} gives a part
=============================  ==========================================================================

Anything else is answered with an error, in the form in which it was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scale0_core.api import Effect, Endpoint, Frames, SocketKind, get_logger, records
from scale0_musicquest import wire
from scale0_musicquest.broker.settings import MusicBrokerSettings
from scale0_musicquest.service.broker.report import Report, endpoint_in, identity
from scale0_musicquest.service.broker.table import Placing, Table, TableFullError, rows

LOG = get_logger("plugin.musicquest")

SERVERS, CLIENTS = "servers", "clients"
MAX_AVOIDED = 1_000
MAX_ROWS = 1_000
"""In one answer, so that it is not larger than a peer takes."""


class MusicBroker:
    """Knows all servers, gives each client one, and each server its father."""

    name = "musicquest-broker"

    def __init__(
        self,
        settings: MusicBrokerSettings | None = None,
        bind_servers: Iterable[str] = ("inproc://musicquest-servers",),
        bind_clients: Iterable[str] = ("inproc://musicquest-clients",),
    ) -> None:
        self._settings = settings = settings or MusicBrokerSettings()
        self.endpoints: Mapping[str, Endpoint] = {
            name: Endpoint(kind=SocketKind.ROUTER, bind=bind, max_message=settings.max_message)
            for name, bind in ((SERVERS, bind_servers), (CLIENTS, bind_clients))
        }
        self.table = Table(
            lease=settings.lease,
            original_lease=settings.original_lease,
            original_stay=settings.original_stay,
            max_servers=settings.max_servers,
        )
        self._without_since: float | None = None
        """When a client was first told that there is no server."""

    # --- what the core calls ------------------------------------------------------------------------------------------

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Answer one message."""
        if not frames:
            return ()
        self._expire(now)
        message = wire.split(frames)
        try:
            wire.check_tag(message, frames)
            answer = self._from_server(message, frames, now) if socket == SERVERS else self._from_client(message, now)
        except records.MalformedError as error:
            answer = wire.error(message, 400, str(error))
        except TableFullError as error:
            LOG.warning("a server was refused", reason=str(error))
            answer = wire.error(message, 503, str(error))
        return ((socket, answer),)

    def next_deadline(self) -> float | None:
        """Say when the next lease ends."""
        return self.table.next_deadline()

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Forget the servers whose lease has ended."""
        self._expire(now)
        return ()

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Count a client off that was gone before it could be told its server."""
        message = wire.split(frames)
        if socket == CLIENTS and message.word == wire.HELLO:
            told = wire.from_json(message.rest[0])["endpoint"] if message.extended else wire.text(message.rest[0])
            self.table.take_back(told)
        return ()

    def _expire(self, now: float) -> None:
        for report in self.table.expire(now):
            LOG.warning("a server was silent and is forgotten", server=report.id, endpoint=report.endpoint)

    # --- servers ------------------------------------------------------------------------------------------------------

    def _from_server(self, message: wire.Message, frames: Frames, now: float) -> Frames:
        if message.extended:
            raise records.MalformedError("a server says its address first, and then its report")
        body = frames[len(message.envelope) :]
        if not body:
            raise records.MalformedError("a server says its address")
        if message.word == wire.BYE:
            return self._goodbye(message)
        if len(body) > 2:
            raise records.MalformedError("after the address one frame of JSON is enough")
        endpoint = endpoint_in(body[0])
        if len(body) == 1:
            self._hear(Report(id=endpoint, endpoint=endpoint, original=True), now)
            return (*message.envelope, wire.OK)
        placing = self._hear(Report.from_json(endpoint, wire.from_json(body[1])), now)
        return (*message.envelope, wire.OK, wire.to_json(self._told(placing)))

    def _hear(self, report: Report, now: float) -> Placing:
        new = report.id not in self.table
        placing = self.table.hear(report, now)
        if new:
            LOG.info("a server has come", server=report.id, endpoint=report.endpoint, father=placing.father)
        return placing

    def _told(self, placing: Placing) -> dict[str, Any]:
        father = {"id": placing.father, "children_endpoint": placing.father_endpoint} if placing.father else None
        told = {"lease_ms": round(self._settings.lease * 1000), "father": father, "root": placing.root}
        return {**told, "refused": placing.refused} if placing.refused else told

    def _goodbye(self, message: wire.Message) -> Frames:
        if not 1 <= len(message.rest) <= 2:
            raise records.MalformedError("a server that leaves says its address, and may say its id")
        endpoint, ident = endpoint_in(message.rest[0]), ""
        if len(message.rest) == 2:
            ident = identity(records.table_of(wire.from_json(message.rest[1])).get("id"))
        if self.table.leave(endpoint, ident):
            LOG.info("a server has left", endpoint=endpoint)
        return (*message.envelope, wire.OK)

    # --- clients ------------------------------------------------------------------------------------------------------

    def _from_client(self, message: wire.Message, now: float) -> Frames:
        if not message.extended:
            if message.word != wire.HELLO or message.rest:
                raise records.MalformedError("a client says hello, and nothing else")
            server = self.table.assign(now)
            if server is None:
                self._retry_ms(now)
                return (*message.envelope, wire.BYE)
            self._without_since = None
            return (*message.envelope, wire.HELLO, server.report.endpoint.encode())
        if message.word == wire.HELLO:
            return self._hello(message, now)
        if message.word == wire.SERVERS:
            return self._list(message)
        raise records.MalformedError("a client says hello or servers")

    def _hello(self, message: wire.Message, now: float) -> Frames:
        options = records.table_of(wire.one_json(message))
        avoid = set(records.list_of(options, "avoid", _text, most=MAX_AVOIDED))
        server = self.table.assign(now, avoid)
        if server is None:
            return wire.answer(message, wire.BYE, wire.to_json({"retry_ms": self._retry_ms(now)}))
        self._without_since = None
        told = {"id": server.report.id, "endpoint": server.report.endpoint}
        return wire.answer(message, wire.HELLO, wire.to_json(told))

    def _retry_ms(self, now: float) -> int:
        """Say when to ask again: after as long as there has been no server, so that the pauses of a client double."""
        if self._without_since is None:
            self._without_since = now
        seconds = max(self._settings.retry_least, now - self._without_since)
        return round(1000 * min(seconds, self._settings.retry_most))

    def _list(self, message: wire.Message) -> Frames:
        options = records.table_of(wire.one_json(message))
        offset = records.whole_of(options, "offset", 0)
        limit = records.whole_of(options, "limit", MAX_ROWS, most=MAX_ROWS)
        return wire.answer(message, wire.SERVERS, wire.to_json(rows(self.table)[offset : offset + limit]))


def _text(value: object) -> str:
    return records.text_of({"avoid": value}, "avoid")
