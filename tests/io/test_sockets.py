from __future__ import annotations

import itertools
import os
import socket as bsd
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import zmq

from scale0_core.config.addresses import ipc_path, is_local
from scale0_core.config.settings import WireSettings
from scale0_core.errors import AddressError
from scale0_core.io.sockets import open_socket
from scale0_core.service import Endpoint, SocketKind

WIRE = WireSettings(linger_ms=0)


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("s")


@pytest.mark.parametrize("kind", list(SocketKind))
def test_every_limit_is_chosen_and_none_inherited(context, kind):
    endpoint = Endpoint(kind=kind, bind="tcp://127.0.0.1:*", high_water=77, max_message=1234)
    opened = open_socket(context, endpoint, WIRE)
    get = opened.socket.getsockopt
    assert get(zmq.TYPE) == getattr(zmq, kind.value)
    assert (get(zmq.SNDHWM), get(zmq.RCVHWM), get(zmq.MAXMSGSIZE)) == (77, 77, 1234)
    assert (get(zmq.LINGER), get(zmq.HANDSHAKE_IVL), get(zmq.HEARTBEAT_IVL)) == (0, 2000, 90_000)
    assert (get(zmq.HEARTBEAT_TIMEOUT), get(zmq.TCP_KEEPALIVE)) == (10_000, 1)


def test_options_by_name_come_last(context):
    opened = open_socket(context, Endpoint(kind="ROUTER", options={"SNDHWM": 5, "ROUTING_ID": b"me"}), WIRE)
    assert opened.socket.getsockopt(zmq.SNDHWM) == 5
    assert opened.socket.getsockopt(zmq.ROUTING_ID) == b"me"


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.9.9.9:*", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:5555", True),
        ("tcp://*:5555", False),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://eth0:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://192.0.2.1:5555", False),
        ("tcp://127.0.0.1.example:1", False),
        ("ws://0.0.0.0:80", False),
        ("udp://239.0.0.1:5555", False),
        ("ipc:///tmp/x", True),
        ("ipc://@/zpipes/local", True),
        ("inproc://x", True),
    ],
)
def test_what_other_machines_can_reach(address, local):
    assert is_local(address) is local


def test_a_socket_that_others_can_reach_is_refused_unless_the_operator_says_so(context):
    endpoint = Endpoint(kind="ROUTER", bind="tcp://0.0.0.0:*")
    with pytest.raises(AddressError, match=r"wire\.insecure"):
        open_socket(context, endpoint, WIRE)
    opened = open_socket(context, endpoint, WireSettings(insecure=True))
    assert opened.addresses[0].startswith("tcp://0.0.0.0:")


def test_the_file_of_an_ipc_address_goes_away_with_the_socket(context, folder):
    opened = open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/x"), WIRE)
    assert (folder / "x").is_socket()
    opened.close()
    assert not (folder / "x").exists()


def test_the_path_of_a_living_program_is_not_taken_over(context, folder):
    first = open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/x"), WIRE)
    with pytest.raises(AddressError, match="in use"):
        open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/x"), WIRE)
    assert (folder / "x").is_socket()
    client = context.socket(zmq.DEALER)
    client.connect(f"ipc://{folder}/x")
    client.send(b"still mine")
    assert first.socket.poll(5000)


def test_the_path_that_a_dead_program_left_is_used_again(context, folder):
    left = bsd.socket(bsd.AF_UNIX)
    left.bind(str(folder / "x"))
    left.close()
    opened = open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/x"), WIRE)
    client = context.socket(zmq.DEALER)
    client.connect(f"ipc://{folder}/x")
    client.send(b"hello")
    assert opened.socket.poll(5000)


def test_a_file_that_is_no_socket_is_never_removed(context, folder):
    (folder / "precious").write_text("data")
    with pytest.raises(AddressError, match="precious"):
        open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/precious"), WIRE)
    assert (folder / "precious").read_text() == "data"


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("tcp://127.0.0.1:99999", "65535"),
        ("tcp://127.0.0.1", "any free one"),
        ("tcp://localhost:http", "number"),
        ("tcp://127.0.0.1:5x", "number"),
        ("tpc://127.0.0.1:5555", "did you mean tcp"),
        ("ipc:///no/such/folder/x", "make the folder"),
        (f"ipc:///tmp/{'x' * 200}", "shorter"),
    ],
)
def test_a_wrong_address_gets_a_remedy(context, address, hint):
    with pytest.raises(AddressError, match=hint):
        open_socket(context, Endpoint(kind="ROUTER", bind=address), WIRE)


def test_an_address_in_use_is_told(context):
    first = open_socket(context, Endpoint(kind="ROUTER", bind="tcp://127.0.0.1:*"), WIRE)
    with pytest.raises(AddressError, match="choose another address"):
        open_socket(context, Endpoint(kind="ROUTER", bind=first.addresses[0]), WIRE)


def test_all_addresses_or_none(context, folder):
    with pytest.raises(AddressError):
        open_socket(context, Endpoint(kind="ROUTER", bind=[f"ipc://{folder}/a", "ipc:///no/such/folder/b"]), WIRE)
    assert list(folder.iterdir()) == []


def test_only_named_files_have_a_path():
    assert ipc_path("ipc:///run/x") == Path("/run/x")
    assert ipc_path("ipc://@abstract") is None
    assert ipc_path("tcp://127.0.0.1:1") is None


def test_the_file_of_another_program_is_left_alone(context, folder):
    other = context.socket(zmq.ROUTER)
    other.bind(f"ipc://{folder}/other")
    opened = open_socket(context, Endpoint(kind="DEALER", connect=f"ipc://{folder}/other"), WIRE)
    assert opened.addresses == (f"ipc://{folder}/other",)
    opened.close()
    assert (folder / "other").is_socket()


CONNECT_AS = """
import os, sys, zmq
os.setuid(int(sys.argv[2]))
with zmq.Context() as context, context.socket(zmq.REQ) as socket:
    socket.linger = 0
    socket.connect(sys.argv[1])
    socket.send(b"hello")
    print("answered" if socket.poll(int(sys.argv[3])) else "refused")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(
    ("other_users", "user", "outcome"), [(False, 65534, "refused"), (True, 65534, "answered"), (False, 0, "answered")]
)
def test_an_abstract_address_is_for_its_owner_unless_others_are_let_in(context, other_users, user, outcome):
    address = f"ipc://@/scale0-test/{uuid.uuid4().hex}"
    wire = WireSettings(linger_ms=0, other_users=other_users)
    opened = open_socket(context, Endpoint(kind="REP", bind=address), wire)
    patience = "800" if outcome == "refused" else "10000"
    command = [sys.executable, "-c", CONNECT_AS, address, str(user), patience]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as client:
        if opened.socket.poll(int(patience)):
            opened.socket.send(opened.socket.recv())
        told, _ = client.communicate(timeout=20)
    assert told.strip() == outcome


FIRST_ID = """
import zmq
from scale0_core.config.settings import WireSettings
from scale0_core.io.sockets import open_socket
from scale0_core.service import Endpoint

context = zmq.Context()
for number in range(2):
    router = open_socket(context, Endpoint(kind="ROUTER", bind=f"inproc://{number}"), WireSettings(linger_ms=0)).socket
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"inproc://{number}")
    dealer.send(b"")
    print(router.recv_multipart()[0].hex())
context.destroy(linger=0)
"""


@pytest.mark.real
def test_routing_ids_of_nameless_peers_differ_from_process_to_process_and_from_socket_to_socket():
    ids = [
        int(line, 16)
        for _ in range(2)
        for line in subprocess.run(
            [sys.executable, "-c", FIRST_ID], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    ]
    assert len(ids) == 4
    # neither equal nor counted on; 1000 of 2^32 are near, so chance fails this once in half a million runs
    assert min(abs(one - other) for one, other in itertools.combinations(ids, 2)) > 1000


@pytest.mark.parametrize("option", ["IMMEDIATE", "ROUTER_HANDOVER"])
def test_options_that_endanger_the_process_or_other_peers_are_refused(option):
    with pytest.raises(ValueError, match=f"option {option} must not be set"):
        Endpoint(kind="ROUTER", options={option: 0})


def test_a_router_does_not_hand_a_peers_place_to_another_of_the_same_id(context, folder):
    opened = open_socket(context, Endpoint(kind="ROUTER", bind=f"ipc://{folder}/router"), WIRE)
    opened.socket.setsockopt(zmq.RCVTIMEO, 5000)

    def peer(body):
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, b"worker")
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(opened.bound[0])
        dealer.send(body)
        return dealer

    first = peer(b"first")
    assert opened.socket.recv_multipart() == [b"worker", b"first"]
    thief = peer(b"second")
    assert not opened.socket.poll(200), "it is not let in"
    opened.socket.send_multipart([b"worker", b"for the first"])
    assert first.recv() == b"for the first"
    # the place is free when its owner is gone: one that comes back under its id is let in
    thief.close(linger=0)
    first.close(linger=0)
    for _ in range(50):
        back = peer(b"back")
        if opened.socket.poll(100):
            break
        back.close(linger=0)
    assert opened.socket.recv_multipart() == [b"worker", b"back"]
