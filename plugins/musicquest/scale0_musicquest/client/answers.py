"""What servers and the broker answer, and what is wrong with it, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from scale0_core.api import Frames, printable, records
from scale0_musicquest import wire
from scale0_musicquest.client.errors import AmbiguousError, DamagedError, NotFoundError, Stage, UntoldError, unreadable
from scale0_musicquest.download import CHUNK
from scale0_musicquest.names import read_name
from scale0_musicquest.songs import MAX_HITS, UNTOLD_SHA256, Hit, Song, endpoint_of

MAX_ROWS = 100_000

Answer = TypeVar("Answer")


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


def read_answer(
    reply: Frames, wanted: bytes, read: Callable[[Frames], Answer], who: str, stage: Stage = Stage.HOLDER
) -> Answer:
    """Return what an answer tells: a word and what follows the tag; raise a MusicError if that makes no sense."""
    try:
        word = reply[0]
        if word != wanted:
            raise records.MalformedError(f"{wanted.decode()} was expected, {word.decode(errors='replace')} came")
        return read(reply[1:])
    except (records.MalformedError, LookupError) as error:
        raise unreadable(who, str(error), stage) from error


def read_result(rest: Frames) -> SearchResult:
    """Read what a search found."""
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


def choose(result: SearchResult, name: str, number: int, digest: str, server: str) -> Hit:
    """Return the song of this name; raise a NotFoundError, or an AmbiguousError when several fit."""
    late = "" if result.complete else "not every server answered in time"
    found = tuple(sorted(result.hits, key=lambda hit: hit.song.sha256))
    if not found:
        meant = f"did you mean {', '.join(result.suggestions)}?" if result.suggestions else "search for a part"
        why = "; ".join(filter(None, ("the servers were asked", late)))
        raise NotFoundError(f"nobody has {name}", why, "nothing was downloaded", meant, stage=Stage.ANSWER)
    chosen = [
        hit
        for place, hit in enumerate(found, 1)
        if number in (0, place) and hit.song.sha256.startswith(digest.lower()) and _is_held_by(hit, server)
    ]
    if len(chosen) == 1:
        return _from_first(chosen[0], server)
    of_all = f"{len(found)} songs are called {printable(name)}"
    raise AmbiguousError(of_all if chosen else f"{of_all}, none of them is the chosen one", found, late)


def holders_of(result: SearchResult, song: Song) -> tuple[str, ...]:
    """Return the endpoints of those who hold a song; others may have another one of its name."""
    same = [hit for hit in result.hits if (hit.song.sha256, hit.song.size) == (song.sha256, song.size)]
    return tuple(dict.fromkeys(holder.endpoint for hit in same for holder in hit.holders))


def insist_on_digest(hit: Hit) -> None:
    """Raise an UntoldError for a song of which nobody could say whether it came right."""
    if hit.song.sha256 == UNTOLD_SHA256:
        holders = ", ".join(holder.endpoint for holder in hit.holders) or "nobody"
        raise UntoldError(
            f"{hit.song.name} cannot be downloaded", f"it is at {holders} by way of an original server, which tells "
            "neither its size nor its SHA-256", "nothing was asked for, as nobody could say whether it is right",
            "search again later: others may have it", stage=Stage.DOWNLOAD,
        )  # fmt: skip


def read_table(rest: Frames) -> dict[str, Any]:
    """Read an object."""
    return dict(records.table_of(wire.from_json(rest[0])))


def read_list(rest: Frames) -> tuple[int, list[Song]]:
    """Read how many songs there are, and some of them."""
    told = records.table_of(wire.from_json(rest[0]))
    return records.whole_of(told, "total"), records.list_of(told, "songs", Song.from_json, most=MAX_ROWS)


def read_top(rest: Frames) -> list[TopRow]:
    """Read which songs are asked for often."""

    def row(value: object) -> TopRow:
        told = records.table_of(value)
        texts = (
            records.text_of(told, "name", ""),
            records.text_of(told, "title", ""),
            records.text_of(told, "artist", ""),
        )
        return TopRow(*texts, records.number_of(told, "count", 0.0))

    return records.items_of(wire.from_json(rest[0]), row, most=MAX_HITS)


def read_servers(rest: Frames) -> list[ServerRow]:
    """Read the servers that the broker knows."""

    def row(value: object) -> ServerRow:
        told = records.table_of(value)
        return ServerRow(
            records.text_of(told, "id"), endpoint_of(told, "endpoint"), records.text_of(told, "father", ""),
            records.whole_of(told, "clients", 0), records.whole_of(told, "capacity", 0),
            records.whole_of(told, "songs", 0), records.flag_of(told, "root"),
        )  # fmt: skip

    return records.items_of(wire.from_json(rest[0]), row, most=MAX_ROWS)


def read_advert(rest: Frames) -> str:
    """Read the name of an advert."""
    name = read_name(rest[0])
    if name is None:
        raise records.MalformedError("the name of the advert is none of a file")
    return name


def read_part(rest: Frames, offset: int) -> bytes:
    """Read the part of an advert at an offset."""
    if len(rest) != 2 or wire.read_number(rest[0]) != offset or len(rest[1]) > CHUNK:
        raise records.MalformedError("it is not the part that was asked for")
    return bytes(rest[1])


def damaged(song: Song, sources: set[str]) -> DamagedError:
    """Make the error for a song that came with another digest."""
    return DamagedError(
        f"{song.name} is damaged", f"what {', '.join(sorted(sources))} sent has another SHA-256 than was told",
        "nothing was kept", "search again; or have the owner of the server look at the file", stage=Stage.CHECK,
    )  # fmt: skip
