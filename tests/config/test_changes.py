"""What is different in a configuration that was read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0_core.config.changes import AT_START, AT_START_AS_WELL, Changes, changes, why_not_whole
from scale0_core.config.files import BrokerConfig, read_config

TEXT = b"[network]\nliveness = 3\n\n[plugin.echo]\nmax_waiting = 5\n"


def read(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return read_config(path)


def test_what_counts_at_start_waits_and_the_rest_of_the_network_does_not(tmp_path: Path):
    old = read(tmp_path, "[network]\nliveness = 3\npeers = []\n[plugin.echo]\nx = 1\ny = 1\n")
    new = read(tmp_path, "[network]\nliveness = 4\npeers = ['tcp://a:1']\n[wire]\nbatch = 1\n[plugin.echo]\nx = 2\n")
    assert changes(old, old, new) == Changes(
        ("network.liveness",), ("network.peers", "plugin.echo.x", "plugin.echo.y", "wire.batch")
    )


def test_what_waits_is_told_until_it_is_taken_back(tmp_path: Path):
    started = read(tmp_path, "")
    first = read(tmp_path, "[wire]\nbatch = 1\n[network]\nliveness = 4\n")
    assert changes(started, first, first) == Changes((), ("wire.batch",))
    assert changes(started, first, started) == Changes(("network.liveness",), ())


@pytest.mark.parametrize("name", ["identity", "group"])
def test_what_the_broker_goes_by_at_once_and_plugins_later_is_told_twice(tmp_path: Path, name: str):
    old, new = read(tmp_path, ""), read(tmp_path, f'[network]\n{name} = "other"\n')
    assert changes(old, old, new) == Changes((f"network.{name}",), (f"network.{name}",))


def test_the_names_are_those_of_settings(tmp_path: Path):
    names = {f"network.{field}" for field in read(tmp_path, "").core.network.__slots__}
    assert names > AT_START | AT_START_AS_WELL


def test_secrets_are_not_told(tmp_path: Path):
    old, new = read(tmp_path, ""), read(tmp_path, '[[network.users]]\nname = "ada"\npassword = "scrypt$x"\n')
    assert changes(old, old, new) == Changes(("network.users",), ())


@pytest.mark.parametrize("size", range(len(TEXT)))
def test_a_file_that_was_cut_off_anywhere_is_not_whole(size: int):
    lost = TEXT[size:].strip()
    assert bool(why_not_whole(TEXT, TEXT[:size])) == bool(lost or not TEXT[:size].endswith(b"\n"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (TEXT, b"", "is empty"),
        (TEXT, b" \n\n", "is empty"),
        (TEXT, TEXT.replace(b"5", b"10")[:-2], "in the middle of a line"),
        (TEXT, b"[network]\n", "cut off: it ends after 10 bytes of the 54"),
        (TEXT, TEXT, ""),
        (TEXT, TEXT + b"\n", ""),
        (TEXT, TEXT + b"[wire]\n", ""),
        (TEXT, b"[network]\nliveness = 4\n", ""),
        (TEXT.strip(), TEXT.strip() + b"0", ""),
        (b"", b"", ""),
        (b"", TEXT, ""),
        (b"\n", b"", ""),
    ],
)
def test_what_is_taken_for_whole(old: bytes, new: bytes, words: str):
    assert (words in why_not_whole(old, new)) if words else why_not_whole(old, new) == words
