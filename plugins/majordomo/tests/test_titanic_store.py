"""Requests and replies on disk: a real SQLite file, and crashes as copies of what lies on disk at a moment."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from scale0_majordomo.service import titanic_store
from scale0_majordomo.service.titanic_store import (
    Close,
    Done,
    Expire,
    Found,
    Freed,
    Load,
    Opened,
    Put,
    Read,
    State,
    Store,
    StoreError,
    new_uuid,
    pack,
    unpack,
    weight,
)


def ident(number: int) -> str:
    return f"{number:032x}"


def put(number: int, service: bytes = b"echo", body: tuple[bytes, ...] = (b"x",)) -> Put:
    return Put(ident(number), service, body)


def crash(folder: Path, target: Path) -> Path:
    """Copy what a process that is killed now would leave behind."""
    target.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, target / path.name)
    return target / "titanic.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder"


@pytest.fixture
def store(folder: Path):
    with closing(Store(folder / "titanic.db")) as store:
        assert store.open() == Opened([], 0, 0)
        yield store


class Killed(BaseException):
    """The process ends here."""


class Kill:
    """An operation in the middle of which it does."""


@pytest.fixture(autouse=True)
def _can_be_killed(monkeypatch):
    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Store, "ACTIONS", {**Store.ACTIONS, Kill: kill})


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_a_request_is_loaded_done_read_and_closed(store):
    frames = (b"", b"\0" * 5, b"body")
    assert store.commit([put(1, body=frames)]) == [None]
    assert store.commit([Load(ident(1)), Read(ident(1))]) == [frames, Found(State.WAITING)]
    before, after = weight(b"echo", frames), weight(b"echo", (b"reply", b""))
    assert store.commit([Done(ident(1), (b"reply", b""))]) == [after - before]
    for _ in range(2):
        assert store.commit([Read(ident(1))]) == [Found(State.DONE, (b"reply", b""))]
    assert store.commit([Load(ident(1)), Done(ident(1), (b"another",))]) == [None, 0]
    assert store.commit([Close(ident(1)), Close(ident(1)), Read(ident(1))]) == [
        Freed(1, after),
        Freed(0, 0),
        None,
    ]


def test_operations_of_a_group_see_each_other_and_fail_alone(store):
    values = store.commit([put(1), put(1), Read(ident(1)), put(2)])
    assert isinstance(values[1], StoreError)
    assert (values[0], values[2], values[3]) == (None, Found(State.WAITING), None)
    assert store.open().waiting == [(ident(1), b"echo"), (ident(2), b"echo")]


def test_a_reply_to_what_is_unknown_is_not_kept(store):
    assert store.commit([Done(ident(7), (b"x",)), Read(ident(7))]) == [0, None]


def test_requests_come_back_in_their_order_with_what_they_weigh(store):
    order = list(range(1, 50))
    Random(1).shuffle(order)
    store.commit([put(number, b"s%d" % number) for number in order])
    store.commit([Done(ident(number), (b"",)) for number in order[:10]])
    opened = store.open()
    assert opened.waiting == [(ident(number), b"s%d" % number) for number in order[10:]]
    assert (opened.rows, opened.bytes) == (49, sum(weight(b"s%d" % n, (b"",)) for n in order) + 39)


def test_replies_expire_and_old_requests_are_given_up(folder):
    now = 1000.0
    with closing(Store(folder / "titanic.db", lambda: now)) as store:
        store.open()
        store.commit([put(1), put(2)])
        now = 1050.0
        store.commit([Done(ident(1), (b"r",)), put(3)])
        assert store.commit([Expire(100)]) == [Freed(0, 0)]
        now = 1101.0
        assert store.commit([Expire(100)]) == [Freed(0, 0, (ident(2),))]
        assert store.commit([Read(ident(2)), Read(ident(1))]) == [Found(State.GIVEN_UP), Found(State.DONE, (b"r",))]
        assert store.open().waiting == [(ident(3), b"echo")]
        now = 1149.0
        store.commit([Done(ident(3), (b"r",))])
        now = 1202.0
        assert store.commit([Expire(100)]) == [Freed(2, 2 * weight(b"echo", (b"r",)))]
        assert store.commit([Read(ident(1)), Read(ident(2))]) == [None, None]
        assert store.commit([Read(ident(3))]) == [Found(State.DONE, (b"r",))]


def test_a_late_reply_to_what_was_given_up_is_taken(folder):
    now = 0.0
    with closing(Store(folder / "titanic.db", lambda: now)) as store:
        store.open()
        store.commit([put(1)])
        now = 11.0
        assert store.commit([Expire(10), Done(ident(1), (b"late",)), Read(ident(1))])[2] == Found(
            State.DONE, (b"late",)
        )


def test_uuids_are_of_version_7_in_the_order_of_time_and_never_the_same():
    made = [new_uuid() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert [each[:12] for each in made] == sorted(each[:12] for each in made)
    for text in made:
        assert (uuid.UUID(text).version, uuid.UUID(text).variant, uuid.UUID(text).hex) == (7, uuid.RFC_4122, text)


@pytest.mark.parametrize("frames", [(), (b"",), (b"", b""), (b"a" * 300, b"\n"), (b"x",) * 1000])
def test_frames_are_what_they_were(frames):
    assert unpack(pack(frames)) == frames


def test_frames_that_are_damaged_are_an_error():
    whole = pack((b"abc", b""))
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for data in (*flipped, *(whole[:size] for size in range(len(whole)))):
        with pytest.raises(StoreError):
            unpack(data)


def test_the_file_is_made_shorter_when_much_was_closed(store, folder, monkeypatch):
    monkeypatch.setattr(titanic_store, "VACUUM_OVER", 16)
    store.commit([put(number, body=(b"x" * 10_000,)) for number in range(200)])
    store.open()
    large = (folder / "titanic.db").stat().st_size
    for number in range(200):
        store.commit([Close(ident(number))])
    store.close()
    assert large > 2_000_000
    assert (folder / "titanic.db").stat().st_size < large / 4


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_store_that_is_not_open_says_so(folder):
    store = Store(folder / "titanic.db")
    with pytest.raises(StoreError, match="not open"):
        store.commit([put(1)])


def test_a_second_broker_is_told_that_the_file_is_in_use(store, folder, monkeypatch):
    monkeypatch.setattr(titanic_store, "LOCK_WAIT", 0.05)
    second = Store(folder / "titanic.db")
    with pytest.raises(StoreError, match="locked"):
        second.open()
    store.commit([put(1)])
    store.close()
    with closing(second):
        assert second.open().waiting == [(ident(1), b"echo")]


@pytest.mark.parametrize(
    "content", [b"not a database at all, but quite a long text" * 100, b"SQLite format 3\0" + b"\1" * 4096]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "titanic.db"
    path.write_bytes(content)
    store = Store(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"titanic\.db cannot be used"):
            store.open()
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["titanic.db"]


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "titanic.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE requests (a)")
    content = path.read_bytes()
    with pytest.raises(StoreError, match="something else"):
        Store(path).open()
    assert path.read_bytes() == content


def test_another_version_is_refused(store, folder):
    store.close()
    with closing(sqlite3.connect(folder / "titanic.db")) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="version 2"):
        store.open()


def test_a_path_that_cannot_be_opened_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "titanic.db", tmp_path):
        with pytest.raises(StoreError):
            Store(path).open()


@pytest.mark.seeds(30)
def test_damage_is_an_error_or_unseen_and_never_a_crash(folder, seed):
    random = Random(seed)
    path = folder / "titanic.db"
    with closing(Store(path)) as store:
        store.open()
        store.commit([put(number, body=(random.randbytes(random.randrange(6000)),)) for number in range(40)])
        store.commit([Done(ident(number), (b"r" * number,)) for number in range(20)])
    data = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 20, 400])):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    if random.random() < 0.3:
        del data[random.randrange(len(data)) :]
    path.write_bytes(data)
    with closing(Store(path)) as store, suppress(StoreError):
        store.open()
        operations = [Load, Read, Close] * 14
        values = store.commit([operation(ident(number)) for number, operation in enumerate(operations)])
        assert len(values) == len(operations)


def test_a_full_disk_fails_the_group_and_nothing_else(store):
    store.commit([put(1)])
    store._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(StoreError, match="full"):
        store.commit([put(2), put(3, body=(b"x" * 200_000,)), put(4)])
    assert store.commit([put(5), Done(ident(1), (b"r",))]) == [None, 0]
    store._connection.execute("PRAGMA max_page_count = 100000")
    assert store.commit([put(3, body=(b"x" * 200_000,))]) == [None]
    assert [ident for ident, _ in store.open().waiting] == [ident(5), ident(3)]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.seeds(10)
def test_what_was_committed_is_there_after_a_crash_at_any_moment(folder, tmp_path, seed):
    """A model beside the store; now and then the process dies, with a group half written into the log."""
    random = Random(seed)
    path = folder / "titanic.db"
    store = Store(path)
    store.open()
    model: dict[str, Found] = {}
    for step in range(60):
        group = []
        for _ in range(random.choice([1, 1, 2, 20])):
            known = random.choice(sorted(model)) if model and random.random() < 0.9 else ident(10**9)
            kind = random.random()
            if kind < 0.5:
                group.append(put(random.getrandbits(100), body=(random.randbytes(random.choice([5, 5000])),)))
            elif kind < 0.8:
                group.append(Done(known, (b"reply to " + known.encode(),)))
            else:
                group.append(Close(known))
        store.commit(group)
        for operation in group:
            if isinstance(operation, Put):
                model[operation.ident] = Found(State.WAITING)
            elif isinstance(operation, Close):
                model.pop(operation.ident, None)
            elif operation.ident in model:
                model[operation.ident] = Found(State.DONE, operation.reply)
        if random.random() < 0.2:
            log = path.with_name("titanic.db-wal")
            safe = log.stat().st_size
            with pytest.raises(Killed):
                store.commit([put(1, body=(b"y" * 100_000,)), Kill()])
            copied = crash(path.parent, tmp_path / f"crash-{step}")
            if random.random() < 0.5 and (torn := copied.with_name(log.name)).exists():
                with torn.open("ab") as file:  # what came after the last commit may be there in part, or be anything
                    file.truncate(max(safe, torn.stat().st_size))
                    file.write(random.randbytes(random.randrange(9000)))
            store.close()
            path = copied
            store = Store(path)
            waiting = store.open().waiting
            assert {each for each, _ in waiting} == {each for each, found in model.items() if not found.state}
        names = sorted(model)
        assert store.commit([Read(name) for name in names]) == [model[name] for name in names]
    store.close()


CHILD = """
import sys
from pathlib import Path
from scale0_majordomo.service.titanic_store import Done, Put, Store

store = Store(Path(sys.argv[1]))
store.open()
for number in range(10**6):
    group = [Put(f"{number:016x}{place:016x}", b"echo", (b"x" * 300,)) for place in range(5)]
    store.commit(group)
    store.commit([Done(group[0].ident, (b"reply",))])
    print(number, flush=True)
"""


@pytest.mark.real
def test_what_was_confirmed_survives_kill_9(tmp_path):
    path = tmp_path / "titanic.db"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
        confirmed = [child.stdout.readline() for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        confirmed += child.stdout.read().splitlines()
    last = int([line for line in confirmed if line.strip()][-1])
    with closing(Store(path)) as store:
        waiting = {each for each, _ in store.open().waiting}
        for number in range(last + 1):
            names = [f"{number:016x}{place:016x}" for place in range(5)]
            assert set(names[1:]) <= waiting
            assert store.commit([Read(names[0])]) == [Found(State.DONE, (b"reply",))]
