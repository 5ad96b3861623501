"""Whether anybody listens at a local address."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path

import pytest
import zmq

from scale0_core.client.kit.listening import why_nobody_listens

pytestmark = pytest.mark.real


@pytest.fixture
def listener():
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    yield socket
    socket.close()
    context.term()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_listener_is_found_at_every_kind_of_local_address(listener, tmp_path):
    for address in (f"ipc://{tmp_path}/there", f"ipc://@{uuid.uuid4()}", "tcp://127.0.0.1:*"):
        listener.bind(address)
        assert why_nobody_listens(listener.get_string(zmq.LAST_ENDPOINT)) == ""
    port = listener.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    assert why_nobody_listens(f"tcp://localhost:{port}") == ""


def test_a_missing_file_says_so_within_a_moment(tmp_path):
    began = time.monotonic()
    assert "No such file" in why_nobody_listens(f"ipc://{tmp_path}/nothing")
    assert "No such file" in why_nobody_listens(f"ipc://{tmp_path}/no/folder")
    assert time.monotonic() - began < 1


def test_what_a_listener_left_behind_is_refused(listener, tmp_path):
    path = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    assert "refused" in why_nobody_listens(f"ipc://{path}")
    Path(tmp_path / "file").write_text("no socket")
    assert "refused" in why_nobody_listens(f"ipc://{tmp_path}/file")
    assert "refused" in why_nobody_listens(f"ipc://@{uuid.uuid4()}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_of_loopback_without_a_listener_is_refused(host):
    assert "refused" in why_nobody_listens(f"tcp://{host}:{free_port()}")


@pytest.mark.parametrize(
    "address", ["tcp://192.0.2.1:5555", "tcp://some.host:5555", "inproc://here", "tcp://127.0.0.1:no", "", "junk"]
)
def test_of_other_addresses_nothing_is_said(address):
    assert why_nobody_listens(address) == ""


def test_a_listener_with_a_full_backlog_is_there(tmp_path):
    path, waiting = str(tmp_path / "busy"), []
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        except BlockingIOError:
            assert why_nobody_listens(f"ipc://{path}") == ""
        finally:
            for each in waiting:
                each.close()
