"""The command `scale0 musicquest`: find songs, download them, play them."""
# does I/O: it is an application

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from string import hexdigits
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from rich.tree import Tree

    from scale0_musicquest.client import MusicClient, Progress, ServerRow
    from scale0_musicquest.songs import Hit, Song

CLIENTS = ("musicquest-broker", "clients")
LONGEST_CONNECT = 5.0
FIX = "start a broker with the plugins musicquest-broker and musicquest-server; or choose one: --broker NAME|ADDRESS"
SHA256_DIGITS = 64
WEB_EXTRA = "pip install 'scale0-musicquest[web]'"

SONG_COLUMNS = {
    "name": "name", "title": "title", "artist": "artist", "album": "album", "seconds": "seconds", "size": "bytes",
}  # fmt: skip
HIT_COLUMNS = {**SONG_COLUMNS, "holders": "holders"}
SERVER_COLUMNS = {
    "id": "id", "endpoint": "endpoint", "father": "father", "clients": "clients", "capacity": "capacity",
    "songs": "songs", "root": "root",
}  # fmt: skip

_broker = kit.broker_option(envvar="SCALE0_MUSICQUEST_BROKER")
_timeout = click.option(
    "--timeout", default=10.0, show_default=True, metavar="S", type=kit.Seconds(),
    help="Seconds for each question.",
)  # fmt: skip
_limit = click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="At most so many.")
_server = click.option(
    "--server", default="", metavar="ENDPOINT", help="Ask this server, not one that the broker gives."
)


@click.group()
def main() -> None:
    """Find songs on many servers, download and play them.

    \b
    Examples:
      scale0 musicquest tunes songs           # a few songs to begin with
      scale0 musicquest search quest
      scale0 musicquest get '01 Morning Sockets.wav'
      scale0 musicquest play                  # the interactive player
      scale0 musicquest tree
    """  # noqa: D301


# --- search and get ---------------------------------------------------------------------------------------------------


@main.command()
@click.argument("text", nargs=-1)
@click.option("--name", default="", help="The exact name of a song.")
@click.option("--title", default="", help="A part of the title.")
@click.option("--artist", default="", help="A part of the artist's name.")
@click.option("--album", default="", help="A part of the album's name.")
@click.option("--fresh", is_flag=True, help="Ask all servers, also when one remembers the answer.")
@_limit
@_broker
@_timeout
@kit.output_option
def search(
    *, text: tuple[str, ...], name: str, title: str, artist: str, album: str, fresh: bool, limit: int,
    broker: str | None, timeout: float,
) -> None:  # fmt: skip
    """Look for songs by parts of what is known of them. Ends with 1 when none is found.

    \b
    Examples:
      scale0 musicquest search quest
      scale0 musicquest search --artist nobody --limit 5
      scale0 musicquest search quest -o jsonl | jq -r .name
    """  # noqa: D301
    with _client(broker, timeout) as client:
        try:
            found = client.search(
                " ".join(text), name=name, title=title, artist=artist, album=album, limit=limit, fresh=fresh
            )
        except ValueError as error:
            raise _usage(str(error), "scale0 musicquest search --help") from error
    rows = [_hit_row(hit) for hit in found.hits]
    kit.emit("scale0.musicquest.hits/1", _safe(rows), columns=HIT_COLUMNS)
    if not found.complete:
        kit.say("not every server answered in time; there may be more")
    if not rows:
        if found.suggestions:
            kit.say(f"did you mean {', '.join(map(_printable, found.suggestions))}?")
        kit.finish(kit.Exit.NEGATIVE)


@main.command()
@click.argument("song")
@click.option("-O", "--to", "target", metavar="FILE", type=click.Path(path_type=Path), help="Where to write it.")
@click.option("--number", metavar="N", type=click.IntRange(1), help="Of several songs, the one of this number.")
@click.option("--digest", default="", metavar="HEX", help="Of several songs, the one whose SHA-256 begins so.")
@click.option("--server", default="", metavar="ENDPOINT", help="Of several songs, the one that this server holds.")
@click.option("--force", is_flag=True, help="Overwrite the file if it is there with other content.")
@_broker
@_timeout
@kit.output_option
def get(
    *,
    song: str,
    target: Path | None,
    number: int | None,
    digest: str,
    server: str,
    force: bool,
    broker: str | None,
    timeout: float,
) -> None:
    """Download SONG, by its name, to a file of this name or to FILE; into FILE if that is a folder.

    Goes on where a download that was broken off ended. The file is there when its SHA-256 is right, and not before. A
    file that is there is not overwritten, unless --force says so. When several songs have the name, they are listed,
    always in the same order, and nothing is downloaded until one is chosen.

    \b
    Examples:
      scale0 musicquest get '01 Morning Sockets.wav'
      scale0 musicquest get '01 Morning Sockets.wav' --to Music
      scale0 musicquest get intro.ogg --digest 5f1c
    """  # noqa: D301
    from scale0_musicquest.client.storage import is_there

    if set(digest) - set(hexdigits) or len(digest) > SHA256_DIGITS:
        raise _usage(f"--digest must be up to 64 hexadecimal digits, got {_printable(digest)}", "look at the list")
    with _client(broker, timeout) as client:
        hit = _find(client, song, number=number or 0, digest=digest, server=server)
        place = target or Path(hit.song.name)
        if place.is_dir():
            place /= hit.song.name
        had = is_there(place, hit.song)
        if not had:
            with _progress(hit.song) as show:
                client.download(hit, place, progress=show, force=force)
    told = {"name": hit.song.name, "file": str(place), "size": hit.song.size, "sha256": hit.song.sha256}
    said = f"{place} is there{' already, with the same content' if had else ''}, {hit.song.size} bytes"
    kit.emit("scale0.musicquest.download/1", {**told, "downloaded": not had}, show=lambda: kit.say(said))


def _find(client: MusicClient, song: str, **choice: Any) -> Hit:
    try:
        return client.hit(song, **choice)
    except ValueError as error:
        raise _usage(
            f"no song is called {_printable(song)}: {error}", "scale0 musicquest search finds names"
        ) from error


# --- play -------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("songs", nargs=-1)
@click.option(
    "--player", default="", metavar="NAME", help="mpv, ffplay, aplay, paplay or null; the first that is there."
)
@click.option(
    "--adverts",
    default=0,
    show_default=True,
    metavar="N",
    type=click.IntRange(min=0),
    help="An advert after each N songs.",
)
@click.option("--playlist", default="", metavar="NAME", help="Begin with this playlist.")
@click.option("--keep", metavar="FOLDER", type=click.Path(path_type=Path), help="Keep what was downloaded there.")
@_broker
@_timeout
def play(
    *,
    songs: tuple[str, ...],
    player: str,
    adverts: int,
    playlist: str,
    keep: Path | None,
    broker: str | None,
    timeout: float,
) -> None:
    """Play SONGS, by their names; without one, the interactive player.

    Its commands come from the terminal, or from a script on stdin, after which it plays to the end: add, del, next,
    prev, stop, play, pause, list, search, save, load, shuffle, repeat, status, wait, help, exit.

    \b
    Examples:
      scale0 musicquest play '01 Morning Sockets.wav' '03 Heartbeat Waltz.wav'
      scale0 musicquest play
      printf 'add Sockets\\nplay\\n' | scale0 musicquest play --player null
    """  # noqa: D301
    with _until_a_signal(), _client(broker, timeout) as client, _folder(keep) as folder:
        _listen(client, folder, songs, player, adverts, playlist)


def _listen(
    client: MusicClient, folder: Path, songs: tuple[str, ...], player: str, adverts: int, playlist: str
) -> None:
    import os
    from random import Random

    from scale0_musicquest.player.deck import Deck
    from scale0_musicquest.player.playlists import playlists_folder
    from scale0_musicquest.player.queue import PlayQueue, Track
    from scale0_musicquest.player.shell import Shell, Status, script_lines, terminal_lines

    queue = PlayQueue(advert_every=adverts, random=Random())  # noqa: S311  for a mix of songs
    deck = Deck(client, _player(player), queue, folder)
    shell = Shell(client, deck, playlists_folder(os.environ), sys.stdout)
    try:
        for song in songs:
            deck.add(Track.of(_find_any(client, song)))
        if playlist:
            shell.do(f"load {playlist}")
        kit.say(f"played by {deck.player.name}")
        if len(queue):
            shell.do("play")
        if songs:
            shell.run(iter(()), to_the_end=True)
            if not deck.history:
                kit.finish(kit.Exit.NEGATIVE)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            with Status(sys.stdout, deck.status):
                shell.say("help shows the commands")
                shell.run(terminal_lines(), to_the_end=False)
        else:
            shell.run(script_lines(), to_the_end=True)
    finally:
        deck.close()


def _find_any(client: MusicClient, song: str) -> Hit:
    """Find a song by its name; of several, take the first."""
    from scale0_musicquest.client import AmbiguousError

    try:
        return _find(client, song)
    except AmbiguousError as error:
        kit.say(f"{error.problem.what}; the first is played, {error.hits[0].song.sha256[:12]}")
        return error.hits[0]


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """End as shells expect it, and have no player go on, when this process is to end or its terminal is gone."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for other in found:
            signal.signal(other, signal.SIG_IGN)  # what is cleaned up has its own time limit
        raise SystemExit(128 + number)

    # nohup has one of them ignored, and so it stays
    found = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in found:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in found:
            signal.signal(number, signal.SIG_DFL)


def _player(name: str) -> Any:
    from scale0_musicquest.player.players import find_player

    try:
        return find_player(name)
    except LookupError as error:
        raise _usage(str(error.args[0]), "install it, or leave out --player") from error


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="musicquest-") as folder:
        yield Path(folder)


@main.command()
@click.argument("name", default="")
@kit.output_option
def playlist(name: str) -> None:
    """List the playlists, or the songs of the playlist NAME. The player saves them: save NAME."""
    import os

    from scale0_musicquest.player import playlists

    folder = playlists.playlists_folder(os.environ)
    found = playlists.load(folder, name) if name else playlists.names(folder)
    kit.emit(
        "scale0.musicquest.playlist/1" if name else "scale0.musicquest.playlists/1", [{"name": one} for one in found]
    )


# --- what there is ----------------------------------------------------------------------------------------------------


@main.command()
@_limit
@_server
@_broker
@_timeout
@kit.output_option
def top(limit: int, server: str, broker: str | None, timeout: float) -> None:
    """List the songs that are asked for most often at a server."""
    with _client(broker, timeout) as client:
        rows = [
            {"name": row.name, "title": row.title, "artist": row.artist, "count": round(row.count, 1)}
            for row in client.top(limit, server)
        ]
    kit.emit("scale0.musicquest.top/1", _safe(rows))


@main.command()
@click.option("--offset", default=0, show_default=True, type=click.IntRange(min=0), help="Leave out so many.")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 1000), help="At most so many.")
@_server
@_broker
@_timeout
@kit.output_option
def songs(offset: int, limit: int, server: str, broker: str | None, timeout: float) -> None:
    """List the songs that a server holds itself."""
    with _client(broker, timeout) as client:
        total, found = client.songs(server, offset, limit)
    rows = [{**song.to_json(), "seconds": round(song.duration, 1)} for song in found]
    kit.emit("scale0.musicquest.songs/1", _safe(rows), columns={**SONG_COLUMNS, "replica": "replica"})
    if total > offset + len(rows):
        kit.say(f"{total} in all; the next ones by --offset {offset + len(rows)}")


@main.command()
@_broker
@_timeout
@kit.output_option
def servers(broker: str | None, timeout: float) -> None:
    """List the servers that the broker knows."""
    kit.emit("scale0.musicquest.servers/1", _safe(_server_rows(broker, timeout)), columns=SERVER_COLUMNS)


@main.command()
@_broker
@_timeout
@kit.output_option
def tree(broker: str | None, timeout: float) -> None:
    """Draw the tree of servers, with their songs and clients."""
    rows = _server_rows(broker, timeout)
    kit.emit("scale0.musicquest.tree/1", rows, show=lambda: _draw(rows))


def _server_rows(broker: str | None, timeout: float) -> list[dict[str, Any]]:
    import attrs

    with _client(broker, timeout) as client:
        found: list[ServerRow] = client.servers()
    return [attrs.asdict(row) for row in found]


def _draw(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.tree import Tree

    if not rows:
        kit.say("the broker knows no server")
        return
    known = {row["id"] for row in rows}
    tops = [row for row in rows if row["father"] not in known or row["father"] == row["id"]]
    drawn: set[str] = set()
    whole = Tree("Music Quest")
    _grow(whole, tops, rows, drawn)
    while left := [row for row in rows if row["id"] not in drawn]:
        _grow(whole, left[:1], rows, drawn)  # the broker should know no circle; if it does, it is shown all the same
    Console(highlight=False).print(whole)


def _grow(branch: Tree, rows: list[dict[str, Any]], all_rows: list[dict[str, Any]], drawn: set[str]) -> None:
    from rich.text import Text

    for row in sorted(rows, key=lambda row: str(row["id"])):
        if row["id"] in drawn:
            continue
        drawn.add(row["id"])
        figures = (
            f"{row['songs']} {'song' if row['songs'] == 1 else 'songs'}, {row['clients']} of {row['capacity']} clients"
        )
        twig = branch.add(Text(f"{_printable(row['id'])}  {_printable(row['endpoint'])}  {figures}"))
        _grow(twig, [other for other in all_rows if other["father"] == row["id"]], all_rows, drawn)


# --- tunes and web ----------------------------------------------------------------------------------------------------


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(0.1, 600), help="How long each is.")
@kit.output_option
def tunes(folder: Path, count: int, seconds: float) -> None:
    """Make a few short songs in FOLDER, to try things out."""
    from scale0_musicquest.tunes import make_tunes

    try:
        made = make_tunes(folder, count=count, seconds=seconds)
    except OSError as error:
        why = error.strerror or str(error)
        raise _usage(f"{folder} cannot be written: {why}", "name another folder") from error
    kit.emit("scale0.musicquest.tunes/1", [{"file": str(path), "bytes": path.stat().st_size} for path in made])


@main.command()
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="Where; 0 for any.")
@_broker
def web(port: int, broker: str | None) -> None:
    """Offer the songs on a web page at this machine: search, listen, download. Ctrl-C ends it."""
    try:
        from scale0_musicquest.web.app import serve
    except ImportError as error:
        raise kit.UsageError(
            "the web page needs more packages", f"{error.name} is missing", "nothing was started", WEB_EXTRA
        ) from error
    with kit.connected(kit.address_at(broker, *CLIENTS), LONGEST_CONNECT, FIX):
        pass
    serve(kit.chosen_broker(broker), port, kit.say)


# --- what they share --------------------------------------------------------------------------------------------------


def _client(broker: str | None, timeout: float) -> MusicClient:
    """Make a client; an error says at once that nobody is there."""
    from scale0_musicquest.client import MusicClient

    with kit.connected(kit.address_at(broker, *CLIENTS), min(timeout, LONGEST_CONNECT), FIX):
        pass
    return MusicClient(kit.chosen_broker(broker), timeout=timeout)


def _usage(what: str, remedy: str) -> kit.UsageError:
    return kit.UsageError(what, "", "nothing was done", remedy)


def _hit_row(hit: Hit) -> dict[str, Any]:
    row = hit.to_json()
    endpoints = [holder.endpoint for holder in hit.holders]
    return {**row, "seconds": round(hit.song.duration, 1), "holders": endpoints}


def _printable(text: str) -> str:
    from scale0_core.api import printable

    return printable(text, 300)


def _safe(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make texts from outside harmless for a terminal."""
    if kit.output_format() != "table":
        return rows
    return [{key: _printable(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]


@contextmanager
def _progress(song: Song) -> Iterator[Callable[[Progress], None] | None]:
    """Show bytes, rate and what remains on stderr, where a person sees it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    more = (TextColumn("{task.fields[rate]}/s from {task.fields[holders]}"), TimeRemainingColumn())
    with Bar(*columns, *more, console=Console(stderr=True)) as bar:
        task = bar.add_task(_printable(song.name), total=song.size, rate="0 bytes", holders=0)

        def show(now: Progress) -> None:
            rate = decimal(int(now.rate))
            bar.update(task, completed=now.received, rate=rate, holders=len(now.holders))

        yield show
