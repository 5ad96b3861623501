"""Which connections a service may have at run time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0_core.container.connections import ID_IN_USE, OTHER_ID, REUSE_AFTER, Connections
from scale0_core.service import Connect, Disconnect, Endpoint

HERE, THERE = "tcp://127.0.0.1:1", "ipc:///run/there"
ENDPOINTS = {"out": Endpoint(kind="ROUTER", connect=THERE), "up": Endpoint(kind="DEALER")}


def connections(linger: float = 1.0) -> Connections:
    return Connections(ENDPOINTS, insecure=False, linger=linger)


anything = st.one_of(
    st.text(),
    st.text().map("tcp://".__add__),
    st.text().map(lambda text: f"tcp://127.0.0.1:{text}"),
    st.text().map("ipc://".__add__),
    st.binary(),
    st.none(),
    st.integers(),
)


@given(st.one_of(anything, st.sampled_from(list(ENDPOINTS))), anything, anything)
def test_any_effect_is_taken_or_refused_and_never_raises(socket, address, routing_id):
    known = connections()
    for effect in (Connect(socket, address, routing_id), Disconnect(socket, address)):
        if not known.fault(effect, 0.0):
            assert effect.address.isprintable()
            assert known.changes(effect) in (True, False)


def test_addresses_of_the_endpoint_are_connected_from_the_start():
    known = connections()
    assert not known.changes(Connect("out", THERE))
    assert known.changes(Disconnect("out", THERE))
    assert known.fault(Connect("out", THERE, b"name"), 0.0) == OTHER_ID
    assert known.disconnected(Disconnect("out", THERE), 0.0) == b""
    assert not known.changes(Disconnect("out", THERE))


def test_an_id_is_free_again_after_the_linger_time_and_a_while():
    known, connect = connections(linger=3.0), Connect("out", HERE, b"name")
    assert known.fault(connect, 0.0) == ""
    known.connected(connect)
    assert known.fault(Connect("out", "tcp://127.0.0.1:2", b"name"), 0.0) == ID_IN_USE
    assert known.disconnected(Disconnect("out", HERE), 100.0) == b"name"
    assert known.fault(connect, 102.9 + REUSE_AFTER) == ID_IN_USE
    assert known.fault(Connect("out", HERE, b"name 2"), 102.9 + REUSE_AFTER) == ""
    assert known.fault(connect, 103.0 + REUSE_AFTER) == ""
