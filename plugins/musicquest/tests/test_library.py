"""The songs of a server in memory: exact names, words in any order, suggestions, and work that does not grow."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_musicquest.service.server.library import Library
from scale0_musicquest.service.server.ordered import BLOCK, Ordered
from scale0_musicquest.service.server.words import LONGEST_WORD, folded, words_of
from scale0_musicquest.songs import MAX_HITS, MAX_TEXT, Query, Song


def song(name: str, title: str = "", artist: str = "", album: str = "", size: int = 1) -> Song:
    return Song(name, size, "00" * 32, title, artist, album)


SONGS = [
    song("01.ogg", "Yesterday", "The Beatles", "Help!"),
    song("02.ogg", "Yesterday Once More", "Carpenters", "Now & Then"),
    song("03.ogg", "The Day Before Yesterday", "Nobody"),
    song("04.ogg", "Déjà Vu", "Beyoncé", "B'Day"),
    song("05.ogg", "Eple", "Röyksopp", "Melody A.M."),
    song("06.ogg", "!!!", "!!!"),
    song("raw_take-7.wav"),
    song("08.ogg", "Straße", "MÖTÖRHEAD"),
    song("09.ogg", "Don't Stop", "Fleetwood Mac", "Rumours"),
]


def names(library: Library, text: str = "", **fields) -> list[str]:
    return [found.name for found in library.find(Query(text=text, **fields))]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(SONGS)


@pytest.mark.requirement("M20")
def test_a_song_is_found_by_its_exact_name(library):
    assert library.find(Query(name="03.ogg")) == [SONGS[2]]
    assert library.get("03.ogg") == SONGS[2]
    assert library.find(Query(name="3.ogg")) == []
    assert library.get("nothing") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("yesterday", ["01.ogg", "02.ogg", "03.ogg"]),  # the title itself, titles that begin so, others
        ("more yesterday", ["02.ogg"]),
        ("STERD eatl", ["01.ogg"]),
        ("deja vu", ["04.ogg"]),
        ("beyonce bday", ["04.ogg"]),
        ("royksopp", ["05.ogg"]),
        ("motorhead strasse", ["08.ogg"]),
        ("dont", ["09.ogg"]),
        ("don’t", ["09.ogg"]),  # noqa: RUF001
        ("!!!", ["06.ogg"]),
        ("raw take", ["raw_take-7.wav"]),
        ("take 7", ["raw_take-7.wav"]),
        ("raw_take-7.wav", ["raw_take-7.wav"]),
        ("09.ogg", ["09.ogg"]),  # a name, though the words of names count only where there are no tags
        ("09", []),
        ("yesterday nobody beatles", []),
        ("", []),
        (" \t\n", []),
    ],
)
def test_words_are_found_in_any_order_and_in_part_without_case_and_accents(library, text, found):
    assert names(library, text) == found


def test_words_of_a_field_are_looked_for_in_that_field(library):
    assert names(library, title="day") == ["03.ogg", "01.ogg", "02.ogg"]
    assert names(library, artist="beatles") == ["01.ogg"]
    assert names(library, title="beatles") == []
    assert names(library, "yesterday", artist="carp", album="then now") == ["02.ogg"]
    assert names(library, title="take") == ["raw_take-7.wav"]


def test_limit_takes_the_best(library):
    assert names(library, "yesterday", limit=1) == ["01.ogg"]
    assert names(library, "day", limit=2) == ["04.ogg", "03.ogg"]
    assert len(names(library, "e", limit=3)) == 3


def test_songs_come_go_and_change_at_any_time():
    library = Library()
    library.add(song("a.ogg", "First"))
    library.add(song("b.ogg", "Second"))
    library.add(song("a.ogg", "Third", size=2))
    assert names(library, "first") == []
    assert names(library, "third") == ["a.ogg"]
    library.add(song("a.ogg", "Third", size=3))
    assert library.find(Query(text="third"))[0].size == 3
    assert library.remove("a.ogg").size == 3
    assert library.remove("a.ogg") is None
    assert names(library, "third") == []
    assert [found.name for found in library] == ["b.ogg"]
    assert len(library) == 1
    assert "b.ogg" in library
    library.remove("b.ogg")
    assert len(library._vocabulary) == len(library._titles) == len(library._vocabulary._endings) == 0


def test_pages_are_in_order_of_names():
    wanted = [f"{number:05d}.ogg" for number in range(3 * BLOCK)]
    shuffled = list(wanted)
    Random(1).shuffle(shuffled)
    library = Library(map(song, shuffled))
    assert [found.name for found in library] == wanted
    for offset in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7, 3 * BLOCK - 1, 3 * BLOCK, 10**9):
        assert [found.name for found in library.page(offset, 100)] == wanted[offset : offset + 100]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("yesterdya", "Yesterday"),
        ("bealtes", "The Beatles"),
        ("beetles", "The Beatles"),
        ("beyonsé", "Beyoncé"),
        ("roiksopp", "Röyksopp"),
        ("fleatwood mack", "Fleetwood Mac"),
        ("rumors", "Rumours"),
        ("raw_take-8.wav", "raw_take-7.wav"),
    ],
)
def test_what_may_have_been_meant_is_suggested(library, text, meant):
    assert meant in library.suggest(text, 3)


def test_suggestions_are_few_and_only_of_what_is_there(library):
    assert library.suggest("qqqqqqqqq") == []
    assert library.suggest("") == []
    assert Library().suggest("anything") == []
    assert len(library.suggest("the yesterday", 2)) == 2
    assert library.suggest("x" * MAX_TEXT) == []


# --- against the plainest search there could be -------------------------------------------------------------


def matches(one: Song, query: Query) -> bool:
    if query.text == one.name and not (query.title or query.artist or query.album):
        return True
    title = words_of(one.title) or words_of(one.name)
    fields = {"title": title, "artist": words_of(one.artist), "album": words_of(one.album)}
    everywhere = [word for field in fields.values() for word in field]
    wanted = {"text": words_of(query.text)} | {field: words_of(getattr(query, field)) for field in fields}
    return any(wanted.values()) and all(
        any(part in word for word in (everywhere if where == "text" else fields[where]))
        for where, parts in wanted.items()
        for part in parts
    )


def order(one: Song, query: Query) -> tuple:
    title = " ".join(words_of(one.title) or words_of(one.name))
    asked = " ".join(words_of(query.title) or words_of(query.text))
    is_name = query.text == one.name and not (query.title or query.artist or query.album)
    return (not is_name, title != asked, not title.startswith(asked), title, one.name)


WORDS = st.sampled_from(["a", "b", "ab", "abba", "Baba", "É", "été", "ß", "SS", "!!", "x'y", "long" * 40, "日本", "\0"])
TEXTS = st.lists(WORDS, max_size=3).map(" ".join) | st.text(max_size=6)
NAMES = st.sampled_from(["a.ogg", "b.ogg", "ab ba.ogg", "été.wav", "NF", "x", "_"])
LIBRARIES = st.lists(st.builds(song, NAMES, TEXTS, TEXTS, TEXTS), max_size=12)
QUERIES = st.builds(Query, st.just(""), TEXTS | NAMES, TEXTS, TEXTS, TEXTS, st.integers(1, 6))


@settings(max_examples=400, deadline=None)
@given(LIBRARIES, st.lists(NAMES, max_size=3), st.lists(QUERIES, min_size=1, max_size=5))
def test_any_search_gives_what_looking_at_every_song_gives(songs, removed, queries):
    library = Library(songs)
    plain = {one.name: one for one in songs}
    for name in removed:
        assert library.remove(name) == plain.pop(name, None)
    assert list(library) == [plain[name] for name in sorted(plain)]
    for query in queries:
        fitting = sorted(
            (one for one in plain.values() if matches(one, query)), key=lambda one, query=query: order(one, query)
        )
        assert library.find(query) == fitting[: query.limit]


@settings(deadline=None)
@given(LIBRARIES, st.text(max_size=MAX_TEXT), st.integers(0, 5))
def test_any_text_gives_suggestions_of_what_is_there(songs, text, limit):
    shown = {name for one in songs for name in (one.name, one.title, one.artist, one.album)}
    suggestions = Library(songs).suggest(text, limit)
    assert len(suggestions) <= limit
    assert set(suggestions) <= shown


@given(st.text())
def test_folding_twice_changes_nothing_more(text):
    assert folded(folded(text)) == folded(text)
    assert all(0 < len(word) <= LONGEST_WORD and " " not in word and "\0" not in word for word in words_of(text))


@given(st.lists(st.text(max_size=3), unique=True, max_size=60), st.data())
def test_texts_stay_in_order_whatever_comes_and_goes(texts, data):
    ordered, plain = Ordered(), []
    for text in texts:
        ordered.add(text)
        plain.append(text)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(plain))
            ordered.remove(gone)
            plain.remove(gone)
    plain.sort()
    asked = data.draw(st.text(max_size=3))
    assert list(ordered) == plain
    assert len(ordered) == len(plain)
    assert list(ordered.after(asked)) == [text for text in plain if text >= asked]
    assert list(ordered.before(asked)) == [text for text in reversed(plain) if text < asked]
    assert ordered.page(2, 3) == plain[2:5]


# --- work, counted: no clock, so that a busy machine changes nothing ----------------------------------------


def crowd(count: int) -> list[Song]:
    """Many songs of made-up words, some of which very many have, and one like no other."""
    chance = Random(7)
    syllables = ["ka", "lo", "mi", "ren", "sto", "va", "zu", "bel", "dor", "fin", "gar", "hul", "jin", "kel"]

    def text() -> str:
        made = ("".join(chance.choices(syllables, k=3)) for _ in range(chance.randint(1, 3)))
        return " ".join((*made, chance.choice(["", "", "love", "night"]))).strip()

    songs = [song(f"{number:06d}.ogg", text(), text(), text()) for number in range(count)]
    return [*songs, song("needle.ogg", "Zanzibar Quartet", "Xylophone Wanderers", "Yggdrasil")]


@pytest.fixture(scope="module")
def small_and_large() -> tuple[Library, Library]:
    return Library(crowd(100)), Library(crowd(20_000))


def work(library: Library, query: Query) -> int:
    before = library.steps
    library.find(query)
    return library.steps - before


@pytest.mark.parametrize(
    "query",
    [
        Query(name="needle.ogg"),
        Query(text="zanzibar"),
        Query(text="anziba"),
        Query(text="quartet xylo"),
        Query(text="zanzibar a e"),
        Query(artist="wanderers", album="ygg"),
        Query(text="not there"),
    ],
)
def test_a_selective_search_is_as_much_work_among_many_songs_as_among_few(small_and_large, query):
    small, large = small_and_large
    assert work(large, query) <= 1.5 * work(small, query)
    assert large.find(query) == small.find(query)


@pytest.mark.parametrize("limit", [1, 20, MAX_HITS])
@pytest.mark.parametrize(
    "text",
    ["a", "e a", "o", "love", "love night", "ka lo", " ".join("abcdefghijklmnopqrstuvwxyz"), "a" * 1_000, "a " * 500],
)
def test_no_search_is_more_than_a_bounded_amount_of_work(small_and_large, text, limit):
    large = small_and_large[1]
    for query in (Query(text=text, limit=limit), Query(title=text, artist=text, limit=limit)):
        assert work(large, query) < 10_000
        found = large.find(query)
        assert len(found) <= limit
        assert all(matches(one, query) for one in found)


def test_two_common_words_together_are_all_found():
    songs = [song(f"{number}.ogg", "Some Love" if number % 2 else "Some Night") for number in range(8_000)]
    songs += [song(f"both {number}.ogg", f"Song {number}", "Love", "Night") for number in range(50)]
    found = Library(songs).find(Query(text="love night", limit=MAX_HITS))
    assert len(found) == 50
    assert all(one.artist == "Love" for one in found)


def test_suggestions_are_a_bounded_amount_of_work(small_and_large):
    large = small_and_large[1]
    for text in ("zanzibra", "kalomixx renstovxx", "qu " * 300, "ka" * 500):
        before = large.steps
        large.suggest(text)
        assert large.steps - before < 10_000
    assert "Zanzibar Quartet" in large.suggest("zanzibra")
