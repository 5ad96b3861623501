"""``MusicClient``: finds songs and downloads them; any thread may use it, and several at once."""

# does I/O: threads, sockets and files behind calls that wait

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import attrs

from scale0_core.api import Frames, printable, records
from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.route import Broker, target
from scale0_core.client.threads import GuardedFuture, IoThread, Pool
from scale0_musicquest import wire
from scale0_musicquest.client.errors import (
    START_BROKER,
    AmbiguousError,
    DamagedError,
    FileThereError,
    MusicError,
    NoBrokerError,
    NotFoundError,
    Stage,
    UntoldError,
    closed,
    refused,
    unreadable,
)
from scale0_musicquest.client.link import Links, ask_broker, forked, new_tag
from scale0_musicquest.client.session import Question, Session, read_error
from scale0_musicquest.client.storage import Memory, PartialFile, is_there
from scale0_musicquest.client.transfer import Locate, Progress, Transfer
from scale0_musicquest.download import CHUNK, PATIENCE, Download
from scale0_musicquest.names import read_name
from scale0_musicquest.songs import MAX_HITS, UNTOLD_SHA256, Hit, Query, Song, endpoint_of

__all__ = ["MusicClient", "SearchResult", "ServerRow", "TopRow"]

TIMEOUT = 10.0
BROKER_PATIENCE = 2.0
"""Seconds until the broker is asked by another socket."""
SERVER_SHARE = 0.8
"""How much of the time that is left a server may use for a search, so that its answer comes in time."""
MAX_ADVERT = 20_000_000
MAX_ROWS = 100_000

_Answer = TypeVar("_Answer")


@attrs.frozen
class SearchResult:
    """What a search found."""

    hits: tuple[Hit, ...]
    complete: bool
    """Whether everybody answered in time."""
    cached: bool
    suggestions: tuple[str, ...]
    """What may have been meant, when nothing was found."""


@attrs.frozen
class ServerRow:
    """A server as the broker knows it."""

    id: str
    endpoint: str
    father: str
    clients: int
    capacity: int
    songs: int
    root: bool


@attrs.frozen
class TopRow:
    """A song that is asked for often."""

    name: str
    title: str
    artist: str
    count: float


class _Way(NamedTuple):
    """How to get a song: from whom, and from whom not."""

    holders: tuple[str, ...]
    without: frozenset[str] = frozenset()


class MusicClient:
    """Finds songs and downloads them.

    ::

        with MusicClient() as client:
            hit = client.search("quest").hits[0]
            client.download(hit, Path(hit.song.name))

    :param broker: the name of a broker on this machine, an address where one takes questions of clients, or several of
        these, which are tried in order.
    :param server: a server to use without asking the broker for one.
    :param timeout: seconds for each question; a download has as long as bytes come.
    :param patience: seconds until the chunks of a holder that says nothing are asked of others; twice that, and it is
        left out.
    :param wait_for_broker: wait for a broker that is not there yet, until the timeout. Otherwise a question fails
        immediately where nobody listens at an address on this machine; a client that had a server waits in any case.
    """

    def __init__(
        self, broker: Broker = "default", *, server: str = "", timeout: float = TIMEOUT, patience: float = PATIENCE,
        wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        if min(timeout, patience) <= 0:
            raise ValueError("a timeout is positive, and so is patience")
        self.timeout, self.patience = timeout, patience
        self.broker = target(broker, "musicquest-broker", "clients")
        """Where the broker takes questions of clients."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        """Questions without an answer, so that none waits forever should the thread end."""
        self._links = Links()
        self._pool = Pool(1, "musicquest broker")
        self._session = Session(
            secrets.token_hex(8), self.broker, ask_broker=self._ask_for_server, new_tag=new_tag, server=server,
            wait_for_broker=wait_for_broker,
        )  # fmt: skip
        self._io = IoThread(
            Engine(self._session), "musicquest client",
            ended=lambda: self._session.ended, on_end=self._on_end,
        )  # fmt: skip
        self._io.start()

    def __enter__(self) -> MusicClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye, end what is under way, and let go of all sockets."""
        if self._links.forked:
            return
        self._closed.set()
        self._io.call(self._session.leave)
        self._io.join()
        self._pool.stop()
        self._links.close()

    def _on_end(self, error: BaseException | None) -> None:
        self._session.leave()
        with self._lock:
            self._closed.set()
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.set_exception(closed())

    @property
    def server(self) -> str:
        """The endpoint of its own server; empty as long as it has none."""
        return self._session.server if self._session.ready else ""

    # --- finding ------------------------------------------------------------------------------------------------------

    def search(
        self, text: str = "", *, name: str = "", title: str = "", artist: str = "", album: str = "", limit: int = 20,
        timeout: float | None = None, fresh: bool = False,
    ) -> SearchResult:  # fmt: skip
        """Look for one song by its exact name, or for songs by parts of what is known of them.

        :param fresh: ask everybody and wait for them, also when the server remembers an answer or has the song.
        """
        query = Query(name, text, title, artist, album, limit)
        Query.from_json(query.to_json())  # a records.MalformedError, which is a ValueError, says what is wrong
        return self._search(query, self.timeout if timeout is None else timeout, fresh=fresh).result()

    def _search(self, query: Query, timeout: float, *, fresh: bool) -> Future[SearchResult]:
        def rest(left: float) -> Frames:
            told = {**query.to_json(), "timeout_ms": max(1, int(left * SERVER_SHARE * 1000)), "fresh": fresh}
            return (wire.to_json(told),)

        return self._submit(wire.SEARCH, rest, timeout, wire.FOUND, _read_result)

    def hit(
        self, name: str, *, number: int = 0, digest: str = "", server: str = "", timeout: float | None = None
    ) -> Hit:
        """Find the song of this name; raise a NotFoundError, or an AmbiguousError when several songs have it.

        All servers are asked. Songs are the same when their digests are; they are sorted by them.

        :param number: choose by the place among the songs of this name, from 1 on.
        :param digest: choose by the SHA-256, or how it begins.
        :param server: choose by a holder's endpoint, and download from it first.
        """
        if number < 0:
            raise ValueError(f"number must be positive, got {number}")
        result = self.search(name=name, limit=MAX_HITS, timeout=timeout, fresh=True)
        late = "" if result.complete else "not every server answered in time"
        found = tuple(sorted(result.hits, key=lambda hit: hit.song.sha256))
        if not found:
            meant = f"did you mean {', '.join(result.suggestions)}?" if result.suggestions else "search for a part"
            why = "; ".join(filter(None, ("the servers were asked", late)))
            raise NotFoundError(f"nobody has {name}", why, "nothing was downloaded", meant)
        chosen = [
            hit
            for place, hit in enumerate(found, 1)
            if number in (0, place) and hit.song.sha256.startswith(digest.lower()) and _is_held_by(hit, server)
        ]
        if len(chosen) == 1:
            return _from_first(chosen[0], server)
        of_all = f"{len(found)} songs are called {printable(name)}"
        raise AmbiguousError(of_all if chosen else f"{of_all}, none of them is the chosen one", found, late)

    def songs(self, endpoint: str = "", offset: int = 0, limit: int = 1000) -> tuple[int, list[Song]]:
        """List the songs of a server, its own by default: how many there are, and a page of them."""
        rest = wire.to_json({"offset": offset, "limit": limit})
        return self._ask(endpoint, wire.LIST, rest, wire.LIST, _read_list)

    def top(self, limit: int = 10, endpoint: str = "") -> list[TopRow]:
        """List the songs that are asked for most often at a server, its own by default."""
        return self._ask(endpoint, wire.TOP, wire.to_json({"limit": limit}), wire.TOP, _read_top)

    def stats(self, endpoint: str = "") -> dict[str, Any]:
        """Tell what a server knows about itself, its own by default."""
        return self._ask(endpoint, wire.STATS, b"", wire.STATS, _read_table)

    def plan(self, endpoint: str, songs: list[dict[str, Any]]) -> dict[str, Any]:
        """Have a server fetch songs from others: name, size, sha256 and holders of each."""
        return self._ask(endpoint, wire.PLAN, wire.to_json({"songs": songs}), wire.OK, _read_table)

    def servers(self) -> list[ServerRow]:
        """List the servers that the broker knows."""
        if self._closed.is_set():
            raise closed()
        frames = ask_broker(
            self.broker, wire.extended(wire.SERVERS, new_tag()), self.timeout, self._closed.is_set
        )  # fmt: skip
        if frames is None:
            what = f"nobody answers at {self.broker}"
            raise NoBrokerError(what, "asking the broker", "nothing came", START_BROKER, stage=Stage.BROKER)
        message = wire.split((b"", *frames))
        if message.word == wire.ERROR:
            raise refused("the broker", *read_error(message), Stage.BROKER)
        return _reading(self.broker, Stage.BROKER, lambda: _read_servers(message.rest))

    # --- downloading --------------------------------------------------------------------------------------------------

    def download(
        self, hit: Hit, target: Path, *, progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None, force: bool = False,
    ) -> Path:  # fmt: skip
        """Download a song to a file, from several holders at once; goes on where a download before it ended.

        A file that is there stays: nothing is done if it is this song, else a FileThereError is raised, unless
        ``force`` says to overwrite it.

        What comes is written to ``TARGET.part``, which becomes the target when its digest is right. When a holder is
        lost, others are looked for. A damaged song is fetched once more, from others.
        """
        _insist_on_digest(hit)
        if is_there(target, hit.song):
            return target
        if not force and os.path.lexists(target):
            raise FileThereError(target)
        file = PartialFile(target, hit.song)
        try:
            self._download_into(file, hit, progress, stop)
            file.finish(force=force)
        finally:
            file.close()
        return target

    def _download_into(
        self, file: PartialFile, hit: Hit, progress: Callable[[Progress], None] | None, stop: threading.Event | None
    ) -> None:
        blamed: set[str] = set()
        ways = deque([_Way(tuple(holder.endpoint for holder in hit.holders))])
        while ways:
            way = ways.popleft()
            transfer = Transfer(
                self._links, Download(hit.song, (), have=file.position, patience=self.patience), file,
                self._locator(way.without), stop=stop, tell=progress,
            )  # fmt: skip
            transfer.run(way.holders)
            if file.is_whole():
                return
            if file.resumed:  # the beginning may be at fault, which others wrote
                ways.appendleft(way)
            elif not blamed:
                ways.extend(self._other_ways(hit.song, transfer.sources))
                blamed |= transfer.sources
            file.restart()
        file.discard()
        raise _damaged(hit.song, blamed)

    def _other_ways(self, song: Song, sources: set[str]) -> list[_Way]:
        """Say from whom to fetch what was damaged: from others; without any, from each of several by itself."""
        found = self._locate(song, sorted(sources), frozenset()).result()
        others = tuple(holder for holder in found if holder not in sources)
        if others:
            return [_Way(others, frozenset(sources))]
        if len(sources) == 1:
            return []
        return [_Way((source,), frozenset(sources - {source})) for source in sorted(sources)]

    def read(self, hit: Hit, offset: int, size: int) -> bytes:
        """Read a part of a song from whoever has it; shorter where the song ends."""
        if offset < 0 or size < 0:
            raise ValueError("an offset and a size are not negative")
        _insist_on_digest(hit)
        end = min(offset + size, hit.song.size)
        if offset >= end:
            return b""
        memory = Memory(offset)
        part = Download(attrs.evolve(hit.song, size=end), (), have=offset, patience=self.patience)
        transfer = Transfer(self._links, part, memory, self._locator(frozenset()), song=hit.song)
        transfer.run(tuple(holder.endpoint for holder in hit.holders))
        return memory.content()

    def advert(self) -> tuple[str, bytes] | None:
        """Get an advert from its own server: a file's name and content; None when it has none."""
        self.stats()  # so that there is a server
        server = self.server
        word, rest = self._links.ask(server, wire.ADVERT, timeout=self.timeout)
        if word == wire.NOT_FOUND:
            return None
        name = _reading(server, Stage.HOLDER, lambda: _read_advert(_expected(word, wire.ADVERT, rest)))
        content = bytearray()
        while len(content) <= MAX_ADVERT:
            part = self._part_of_advert(server, name, len(content))
            content += part
            if len(part) < CHUNK:
                return name, bytes(content)
        what = f"the advert {printable(name)} is too large"
        raise MusicError(what, f"it has more than {MAX_ADVERT} bytes", "it is left out", stage=Stage.HOLDER)

    def _part_of_advert(self, server: str, name: str, offset: int) -> bytes:
        place = (wire.number(offset), wire.number(CHUNK))
        word, rest = self._links.ask(server, wire.FETCH, wire.ADVERT, name.encode(), *place, timeout=self.timeout)
        if word == wire.NOT_FOUND:
            raise NotFoundError(f"the advert {printable(name)} is gone", "", "it is left out", stage=Stage.HOLDER)
        return _reading(server, Stage.HOLDER, lambda: _read_part(_expected(word, wire.DATA, rest), offset))

    def _locator(self, without: frozenset[str]) -> Locate:
        return lambda song, lost: self._locate(song, lost, without)

    def _locate(self, song: Song, lost: list[str], without: frozenset[str]) -> Future[tuple[str, ...]]:
        """Ask the server afresh who holds a song, and tell it who did not."""
        for endpoint in lost:
            self._tell_stale(song, endpoint)
        found: Future[tuple[str, ...]] = Future()

        def note(searched: Future[SearchResult]) -> None:
            error = searched.exception()
            if error is not None:
                found.set_exception(error)
                return
            same = [
                hit for hit in searched.result().hits if (hit.song.sha256, hit.song.size) == (song.sha256, song.size)
            ]
            endpoints = (holder.endpoint for hit in same for holder in hit.holders)
            found.set_result(tuple(dict.fromkeys(name for name in endpoints if name not in without)))

        # several songs may have this name
        self._search(Query(name=song.name, limit=MAX_HITS), self.timeout, fresh=True).add_done_callback(note)
        return found

    def _tell_stale(self, song: Song, endpoint: str) -> None:
        told = wire.to_json({"song": song.name, "endpoint": endpoint})
        self._submit(wire.STALE, lambda left: (told,), self.timeout, wire.OK, lambda rest: None)

    def _check(self) -> None:
        if self._links.forked:
            raise forked()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(
        self, endpoint: str, word: bytes, rest: bytes, word_back: bytes, read: Callable[[Frames], _Answer]
    ) -> _Answer:
        if not endpoint:
            return self._submit(word, lambda left: (rest,), self.timeout, word_back, read).result()
        found, answer = self._links.ask(endpoint, word, rest, timeout=self.timeout)
        return _reading(endpoint, Stage.HOLDER, lambda: read(_expected(found, word_back, answer)))

    def _submit(
        self, word: bytes, rest: Callable[[float], Frames], timeout: float, word_back: bytes,
        read: Callable[[Frames], _Answer],
    ) -> Future[_Answer]:  # fmt: skip
        self._check()
        future: Future[_Answer] = GuardedFuture(self._check)
        with self._lock:
            if self._closed.is_set():
                future.set_exception(closed())
                return future
            self._waiting.add(future)

        def done(question: Question) -> None:
            with self._lock:
                if future not in self._waiting:
                    return
                self._waiting.remove(future)
            if question.error is not None:
                future.set_exception(question.error)
                return
            try:
                future.set_result(read(_expected(question.word_back, word_back, question.answer)))
            except (records.MalformedError, LookupError) as error:
                future.set_exception(unreadable(self._session.server, str(error), Stage.ANSWER))
            except Exception as error:  # whoever waits is told, and the thread serves the others
                future.set_exception(error)

        question = Question(word, rest, time.monotonic() + timeout, done)
        self._io.call(lambda: self._session.ask(question, time.monotonic()))
        return future

    def _ask_for_server(self, request: Frames) -> None:
        """Ask the broker on another thread, since that waits."""

        def ask() -> None:
            try:
                answer = ask_broker(self.broker, request, BROKER_PATIENCE, self._closed.is_set)
                self._io.call(lambda: self._session.on_broker(answer, time.monotonic()))
            except NoBrokerError as error:
                nobody = error
                self._io.call(lambda: self._session.on_no_broker(nobody, time.monotonic()))

        self._pool.run(ask)


# --- reading answers --------------------------------------------------------------------------------------------------


def _reading(who: str, stage: Stage, read: Callable[[], _Answer]) -> _Answer:
    try:
        return read()
    except (records.MalformedError, LookupError) as error:
        raise unreadable(who, str(error), stage) from error


def _expected(word: bytes, wanted: bytes, rest: Frames) -> Frames:
    if word != wanted:
        raise records.MalformedError(f"{wanted.decode()} was expected, {word.decode(errors='replace')} came")
    return rest


def _read_result(rest: Frames) -> SearchResult:
    told = records.table_of(wire.from_json(rest[0]))
    return SearchResult(
        _told_best(records.list_of(told, "hits", Hit.from_json)), records.flag_of(told, "complete"),
        records.flag_of(told, "cached"),
        tuple(records.list_of(told, "suggestions", lambda value: records.text_of({"it": value}, "it"))),
    )  # fmt: skip


def _told_best(hits: list[Hit]) -> tuple[Hit, ...]:
    """Leave out what original servers have when others have a song of this name as well."""
    told = {hit.song.name for hit in hits if hit.song.sha256 != UNTOLD_SHA256}
    return tuple(hit for hit in hits if hit.song.sha256 != UNTOLD_SHA256 or hit.song.name not in told)


def _is_held_by(hit: Hit, server: str) -> bool:
    return not server or any(holder.endpoint == server for holder in hit.holders)


def _from_first(hit: Hit, server: str) -> Hit:
    """Put a server first among the holders."""
    return attrs.evolve(hit, holders=tuple(sorted(hit.holders, key=lambda holder: holder.endpoint != server)))


def _insist_on_digest(hit: Hit) -> None:
    if hit.song.sha256 == UNTOLD_SHA256:
        holders = ", ".join(holder.endpoint for holder in hit.holders) or "nobody"
        raise UntoldError(
            f"{hit.song.name} cannot be downloaded", f"it is at {holders} by way of an original server, which tells "
            "neither its size nor its SHA-256", "nothing was asked for, as nobody could say whether it is right",
            "search again later: others may have it", stage=Stage.DOWNLOAD,
        )  # fmt: skip


def _read_table(rest: Frames) -> dict[str, Any]:
    return dict(records.table_of(wire.from_json(rest[0])))


def _read_list(rest: Frames) -> tuple[int, list[Song]]:
    told = records.table_of(wire.from_json(rest[0]))
    return records.whole_of(told, "total"), records.list_of(told, "songs", Song.from_json, most=MAX_ROWS)


def _read_top(rest: Frames) -> list[TopRow]:
    def row(value: object) -> TopRow:
        told = records.table_of(value)
        texts = (
            records.text_of(told, "name", ""),
            records.text_of(told, "title", ""),
            records.text_of(told, "artist", ""),
        )
        return TopRow(*texts, records.number_of(told, "count", 0.0))

    return records.items_of(wire.from_json(rest[0]), row, most=MAX_HITS)


def _read_servers(rest: Frames) -> list[ServerRow]:
    def row(value: object) -> ServerRow:
        told = records.table_of(value)
        return ServerRow(
            records.text_of(told, "id"), endpoint_of(told, "endpoint"), records.text_of(told, "father", ""),
            records.whole_of(told, "clients", 0), records.whole_of(told, "capacity", 0),
            records.whole_of(told, "songs", 0), records.flag_of(told, "root"),
        )  # fmt: skip

    return records.items_of(wire.from_json(rest[0]), row, most=MAX_ROWS)


def _read_advert(rest: Frames) -> str:
    name = read_name(rest[0])
    if name is None:
        raise records.MalformedError("the name of the advert is none of a file")
    return name


def _read_part(rest: Frames, offset: int) -> bytes:
    if len(rest) != 2 or wire.read_number(rest[0]) != offset or len(rest[1]) > CHUNK:
        raise records.MalformedError("it is not the part that was asked for")
    return bytes(rest[1])


def _damaged(song: Song, sources: set[str]) -> DamagedError:
    return DamagedError(
        f"{song.name} is damaged", f"what {', '.join(sorted(sources))} sent has another SHA-256 than was told",
        "nothing was kept", "search again; or have the owner of the server look at the file", stage=Stage.CHECK,
    )  # fmt: skip
