"""What both flavours of ``MusicClient`` have in common: what it can do, as flows."""

# does I/O: files

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs

from scale0_core.api import Frames, Scale0Error, printable
from scale0_core.client.kit.drivers import Driver, Mailbox
from scale0_core.client.kit.flows import Flow
from scale0_core.client.kit.route import BETWEEN, Broker, target
from scale0_musicquest import wire
from scale0_musicquest.client.answers import (
    Answer,
    SearchResult,
    ServerRow,
    TopRow,
    choose,
    damaged,
    holders_of,
    insist_on_digest,
    read_advert,
    read_answer,
    read_list,
    read_part,
    read_result,
    read_servers,
    read_table,
    read_top,
)
from scale0_musicquest.client.errors import (
    START_BROKER,
    FileThereError,
    MusicError,
    NoBrokerError,
    NotFoundError,
    Stage,
    closed,
    forked,
    refused,
)
from scale0_musicquest.client.holders import HolderQuestion, Holders
from scale0_musicquest.client.session import BrokerSession, Heard, MusicSession, Question, nobody_answers, read_error
from scale0_musicquest.client.storage import Memory, Ordered, PartialFile, is_there
from scale0_musicquest.client.transfer import Chunk, Found, Locate, Progress, Transfer
from scale0_musicquest.download import CHUNK, PATIENCE, Download
from scale0_musicquest.songs import MAX_HITS, Hit, Query, Song

TIMEOUT = 10.0
BROKER_PATIENCE = 2.0
"""Seconds until the broker is asked by another socket."""
SERVER_SHARE = 0.8
"""How much of the time that is left a server may use for a search, so that its answer comes in time."""
MAX_ADVERT = 20_000_000

Watcher = Callable[[Progress], None]


class Stop(Protocol):
    """What says that a download is to end, such as an event of threads."""

    def is_set(self) -> bool:
        """Return whether it is to end."""


class BaseMusicClient(ABC):
    """Finds songs and downloads them, but for how it waits."""

    def __init__(
        self, broker: Broker = "default", *, server: str = "", timeout: float = TIMEOUT, patience: float = PATIENCE,
        wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        """Make a client.

        :param broker: the name of a broker on this machine, an address where one takes questions of clients, or several
            of these, which are tried in order.
        :param server: a server to use without asking the broker for one.
        :param timeout: seconds for each question; a download has as long as bytes come.
        :param patience: seconds until the chunks of a holder that says nothing are asked of others; twice that, and it
            is left out.
        :param wait_for_broker: wait for a broker that is not there yet, until the timeout. Otherwise a question fails
            immediately where nobody listens at an address on this machine; a client that had a server waits in any
            case.
        """
        if min(timeout, patience) <= 0:
            raise ValueError("a timeout is positive, and so is patience")
        self.timeout, self.patience = timeout, patience
        self.broker = target(broker, "musicquest-broker", "clients")
        """Where the broker takes questions of clients."""

        def find(request: Frames) -> None:  # without a reference to this client, so that it may be collected
            _ask_broker(driver, request, BROKER_PATIENCE, driver.session.on_broker)

        self._session = MusicSession(
            secrets.token_hex(8), self.broker, ask_broker=find, new_tag=new_tag, server=server,
            wait_for_broker=wait_for_broker,
        )  # fmt: skip
        driver = self._driver = self._driven(self._session)
        self._holders = Holders(driver.add)
        driver.belong_to(self)

    @abstractmethod
    def _driven(self, session: MusicSession) -> Driver[MusicSession]:
        """Make what turns the session."""

    @property
    def server(self) -> str:
        """The endpoint of its own server; empty as long as it has none."""
        return self._session.address if self._session.ready else ""

    def _close(self) -> Flow[None]:
        yield self._driver.closing()

    # --- finding ------------------------------------------------------------------------------------------------------

    def _search(self, query: Query, timeout: float | None, *, fresh: bool) -> Flow[SearchResult]:
        Query.from_json(query.to_json())  # a records.MalformedError, which is a ValueError, says what is wrong
        rest, seconds = _search_words(query, fresh=fresh), self.timeout if timeout is None else timeout
        return (yield from self._ask_own(wire.SEARCH, rest, seconds, wire.FOUND, read_result))

    def _hit(self, name: str, number: int, digest: str, server: str, timeout: float | None) -> Flow[Hit]:
        if number < 0:
            raise ValueError(f"number must be positive, got {number}")
        result = yield from self._search(Query(name=name, limit=MAX_HITS), timeout, fresh=True)
        return choose(result, name, number, digest, server)

    def _songs(self, endpoint: str, offset: int, limit: int) -> Flow[tuple[int, list[Song]]]:
        page = wire.to_json({"offset": offset, "limit": limit})
        return self._ask(endpoint, wire.LIST, page, wire.LIST, read_list)

    def _top(self, limit: int, endpoint: str) -> Flow[list[TopRow]]:
        return self._ask(endpoint, wire.TOP, wire.to_json({"limit": limit}), wire.TOP, read_top)

    def _stats(self, endpoint: str) -> Flow[dict[str, Any]]:
        return self._ask(endpoint, wire.STATS, b"", wire.STATS, read_table)

    def _plan(self, endpoint: str, songs: list[dict[str, Any]]) -> Flow[dict[str, Any]]:
        return self._ask(endpoint, wire.PLAN, wire.to_json({"songs": songs}), wire.OK, read_table)

    def _servers(self) -> Flow[list[ServerRow]]:
        request, mailbox = wire.extended(wire.SERVERS, new_tag()), self._driver.mailbox()
        begin = partial(_ask_broker, self._driver, request, self.timeout, lambda said, now: mailbox.put(said))
        frames = yield from self._wait(begin, mailbox)
        if frames is None:
            raise nobody_answers(self.broker, "nothing came")
        message = wire.split((b"", *frames))
        if message.word == wire.ERROR:
            raise refused("the broker", *read_error(message), Stage.BROKER)
        return read_answer((message.word, *message.rest), wire.SERVERS, read_servers, self.broker, Stage.BROKER)

    def _advert(self) -> Flow[tuple[str, bytes] | None]:
        yield from self._stats("")  # so that there is a server
        server = self.server
        reply = yield from self._ask_holder(server, wire.ADVERT)
        if reply[0] == wire.NOT_FOUND:
            return None
        name = read_answer(reply, wire.ADVERT, read_advert, server)
        content = bytearray()
        while len(content) <= MAX_ADVERT:
            place = (wire.number(len(content)), wire.number(CHUNK))
            reply = yield from self._ask_holder(server, wire.FETCH, wire.ADVERT, name.encode(), *place)
            if reply[0] == wire.NOT_FOUND:
                what = f"the advert {printable(name)} is gone"
                raise NotFoundError(what, "", "it is left out", stage=Stage.HOLDER)
            part = read_answer(reply, wire.DATA, partial(read_part, offset=len(content)), server)
            content += part
            if len(part) < CHUNK:
                return name, bytes(content)
        what = f"the advert {printable(name)} is too large"
        raise MusicError(what, f"it has more than {MAX_ADVERT} bytes", "it is left out", stage=Stage.HOLDER)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(
        self, endpoint: str, word: bytes, rest: bytes, wanted: bytes, read: Callable[[Frames], Answer]
    ) -> Flow[Answer]:
        if not endpoint:
            return (yield from self._ask_own(word, _always(rest), self.timeout, wanted, read))
        reply = yield from self._ask_holder(endpoint, word, rest)
        return read_answer(reply, wanted, read, endpoint)

    def _ask_own(
        self, word: bytes, rest: Callable[[float], Frames], timeout: float, wanted: bytes,
        read: Callable[[Frames], Answer],
    ) -> Flow[Answer]:  # fmt: skip
        now, mailbox = self._driver.now(), self._driver.mailbox()
        question = Question(word, rest, now + timeout, mailbox.put)
        begin, cancel = partial(self._session.ask, question, now), partial(self._session.cancel, question)
        yield from self._wait(begin, mailbox, cancel)
        return read_answer(question.reply(), wanted, read, self._session.address, Stage.ANSWER)

    def _ask_holder(self, endpoint: str, word: bytes, *rest: bytes) -> Flow[Frames]:
        mailbox = self._driver.mailbox()
        request = wire.extended(word, new_tag(), *rest)
        question = HolderQuestion(self._holders, endpoint, request, self.timeout, mailbox.put)
        begin, cancel = partial(self._driver.add, question), lambda: question.stop(self._driver.now())
        reply: Frames = yield from self._wait(begin, mailbox, cancel)
        return reply

    def _wait(
        self, begin: Callable[[], object], mailbox: Mailbox, cancel: Callable[[], object] = lambda: None
    ) -> Flow[Any]:
        """Begin something, and wait for what comes of it; who does not wait any more cancels it."""
        self._begin(begin, mailbox)
        try:
            said = yield self._driver.take(mailbox)
        except BaseException:
            self._driver.post(cancel)
            raise
        if isinstance(said, Exception):
            raise said
        return said

    def _begin(self, begin: Callable[[], object], mailbox: Mailbox) -> None:
        """Have something begun whose outcome comes into a mailbox; what it raises goes there, too."""

        def begun() -> None:
            try:
                begin()
            except Exception as error:  # on the driver's side, where nobody waits for it
                mailbox.put(error)

        if not self._driver.post(begun):
            raise forked() if self._driver.forked else closed()

    # --- downloading --------------------------------------------------------------------------------------------------

    def _download(
        self, hit: Hit, target: Path, progress: Watcher | None, stop: Stop | None, *, force: bool
    ) -> Flow[Path]:
        in_thread = self._driver.in_thread
        insist_on_digest(hit)
        if (yield in_thread(partial(is_there, target, hit.song))):
            return target
        if not force and os.path.lexists(target):
            raise FileThereError(target)
        file = PartialFile(target, hit.song)
        try:
            yield from self._download_into(file, hit, progress, stop)
            yield in_thread(partial(file.finish, force=force))
        finally:
            yield in_thread(file.close)
        return target

    def _download_into(self, file: PartialFile, hit: Hit, progress: Watcher | None, stop: Stop | None) -> Flow[None]:
        song = hit.song
        blamed: set[str] = set()
        # from whom, and from whom not
        ways = deque([(tuple(holder.endpoint for holder in hit.holders), frozenset[str]())])
        while ways:
            holders, without = way = ways.popleft()
            part = Download(song, (), have=file.position, patience=self.patience)
            sources = yield from self._transfer(part, file, holders, self._locator(song, without), song, progress, stop)
            if (yield self._driver.in_thread(file.is_whole)):
                return
            if file.resumed:  # the beginning may be at fault, which others wrote
                ways.appendleft(way)
            elif not blamed:
                ways.extend((yield from self._other_ways(song, sources)))
                blamed |= sources
            file.restart()
        file.discard()
        raise damaged(song, blamed)

    def _other_ways(self, song: Song, sources: set[str]) -> Flow[list[tuple[tuple[str, ...], frozenset[str]]]]:
        """Say from whom to fetch what was damaged: from others; without any, from each of several by itself."""
        locate, mailbox = self._locator(song, frozenset()), self._driver.mailbox()
        begin = partial(locate, sorted(sources), self._driver.now(), lambda found, now: mailbox.put(found))
        holders = yield from self._wait(begin, mailbox)
        others = tuple(holder for holder in holders if holder not in sources)
        if others:
            return [(others, frozenset(sources))]
        if len(sources) == 1:
            return []
        return [((source,), frozenset(sources - {source})) for source in sorted(sources)]

    def _read(self, hit: Hit, offset: int, size: int) -> Flow[bytes]:
        if offset < 0 or size < 0:
            raise ValueError("an offset and a size are not negative")
        insist_on_digest(hit)
        end = min(offset + size, hit.song.size)
        if offset >= end:
            return b""
        memory = Memory(offset)
        part = Download(attrs.evolve(hit.song, size=end), (), have=offset, patience=self.patience)
        holders = tuple(holder.endpoint for holder in hit.holders)
        yield from self._transfer(part, memory, holders, self._locator(hit.song, frozenset()), hit.song)
        return memory.content()

    def _transfer(
        self, part: Download, into: Ordered, holders: tuple[str, ...], locate: Locate, song: Song,
        progress: Watcher | None = None, stop: Stop | None = None,
    ) -> Flow[set[str]]:  # fmt: skip
        """Download from several holders, and return those that bytes came from."""
        driver = self._driver
        mailbox = driver.mailbox()
        transfer = Transfer(
            self._holders, part, holders, locate, put=mailbox.put, tag=new_tag(), song=song,
            stopped=stop.is_set if stop is not None else lambda: False, shows=progress is not None,
        )  # fmt: skip
        self._begin(partial(driver.add, transfer), mailbox)
        try:
            while True:
                said = [(yield driver.take(mailbox))]
                while not mailbox.empty():
                    said.append((yield driver.take(mailbox)))
                chunks = [each for each in said if type(each) is Chunk]
                if chunks:
                    yield driver.in_thread(partial(into.put_all, chunks))
                    if transfer.note_written(len(chunks)):
                        driver.post(lambda: transfer.go_on(driver.now()))
                for each in said:
                    if each is None:
                        return transfer.sources
                    if isinstance(each, Exception):
                        raise each
                    if type(each) is Progress and progress is not None:
                        progress(each)
        finally:
            driver.post(lambda: transfer.stop(driver.now()))

    def _locator(self, song: Song, without: frozenset[str]) -> Locate:
        """Return what asks the server afresh who holds a song, and tells it who did not."""
        session, timeout, now_is = self._session, self.timeout, self._driver.now
        rest = _search_words(Query(name=song.name, limit=MAX_HITS), fresh=True)  # several may have this name

        def locate(lost: list[str], now: float, found: Found) -> None:
            def done(question: Question) -> None:
                try:
                    result = read_answer(question.reply(), wire.FOUND, read_result, session.address, Stage.ANSWER)
                    holders = tuple(name for name in holders_of(result, song) if name not in without)
                except Exception as error:  # whoever waits is told, and the driver serves the others
                    found(error, now_is())
                else:
                    found(holders, now_is())

            for endpoint in lost:
                told = _always(wire.to_json({"song": song.name, "endpoint": endpoint}))
                session.ask(Question(wire.STALE, told, now + timeout, lambda question: None), now)
            session.ask(Question(wire.SEARCH, rest, now + timeout, done), now)

        return locate


def new_tag() -> bytes:
    """Draw a tag."""
    return secrets.token_hex(8).encode()


def _ask_broker(driver: Driver[MusicSession], request: Frames, timeout: float, done: Heard) -> None:
    broker = driver.session.broker
    try:
        driver.add(BrokerSession(broker.split(BETWEEN), request, timeout, done))
    except Scale0Error as error:
        what, why = error.problem.what, error.problem.why
        done(NoBrokerError(what, why, "nothing was asked", START_BROKER, stage=Stage.BROKER), driver.now())


def _search_words(query: Query, *, fresh: bool) -> Callable[[float], Frames]:
    """Return what writes a search, for so many seconds left."""

    def rest(left: float) -> Frames:
        told = {**query.to_json(), "timeout_ms": max(1, int(left * SERVER_SHARE * 1000)), "fresh": fresh}
        return (wire.to_json(told),)

    return rest


def _always(rest: bytes) -> Callable[[float], Frames]:
    return lambda left: (rest,)
