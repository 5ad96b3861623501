"""The service of a broker that is disabled."""

from __future__ import annotations

import pytest

from scale0_core.testing import check_disabled


@pytest.mark.parametrize("socket", ["clients", "servers"])
def test_the_music_broker_is_silent_while_the_broker_is_disabled(scale0_broker, socket):
    table = {"bind_servers": ["ipc://{runtime}/servers"], "bind_clients": ["ipc://{runtime}/clients"]}
    broker = scale0_broker(["musicquest-broker"], {"plugin": {"musicquest-broker": table}})
    request = [b"hello"] if socket == "clients" else [b"tcp://localhost:5556"]
    check_disabled(broker, "musicquest-broker", socket, request)


@pytest.mark.parametrize("socket", ["clients", "children"])
def test_a_music_server_is_silent_while_the_broker_is_disabled(scale0_broker, tmp_path, socket):
    table = {"music": str(tmp_path), "clients": ["ipc://{runtime}/clients"], "children": ["ipc://{runtime}/children"]}
    broker = scale0_broker(["musicquest-server"], {"plugin": {"musicquest-server": table}})
    check_disabled(broker, "musicquest-server", socket, [b"ZMQ01", b"stats", b"s"])
