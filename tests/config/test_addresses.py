"""Whether an address is well formed: told before a socket is opened, in words that help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.config.addresses import bind_fault, network_faults, tcp_host
from scale0_core.config.files import read_config
from scale0_core.errors import ConfigError


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5555", "tcp://127.0.0.1:0", "tcp://*:*", "tcp://lo:*", "tcp://some.host:65535", "tcp://[::1]:5",
        "ipc:///run/x", "ipc://x", "ipc://@abstract", "inproc://x",
    ],
)  # fmt: skip
def test_what_is_well_formed_has_no_fault(address: str):
    assert bind_fault("here", address) is None


@pytest.mark.parametrize(
    ("address", "words", "hint"),
    [
        ("", "is not an address", "tcp://127.0.0.1:5555"),
        ("tcp:/127.0.0.1:5", "is not an address", "tcp://127.0.0.1:5555"),
        ("tpc://127.0.0.1:5", "there is no transport 'tpc'", "did you mean tcp?"),
        ("TCP://127.0.0.1:5", "there is no transport 'TCP'", "tcp"),
        ("udp://127.0.0.1:5", "there is no transport 'udp'", "tcp"),
        ("ipc://", "nothing follows ipc://", "ipc:///run/some/path"),
        ("inproc://", "nothing follows inproc://", ""),
        ("ipc:///" + "x" * 120, "at most 107 bytes", "shorter"),
        ("ipc:///" + "é" * 60, "at most 107 bytes", "shorter"),
        ("tcp://:x", "'x' is no port", "65535"),
        ("tcp://:5", "the host is missing", "127.0.0.1"),
        ("tcp://127.0.0.1", "the port is missing", "*"),
        ("tcp://127.0.0.1:", "'' is no port", "65535"),
        ("tcp://127.0.0.1:65536", "'65536' is no port", "65535"),
        # libzmq would take these for ports 5, 65535 and 5
        ("tcp://127.0.0.1:5x", "'5x' is no port", "65535"),
        ("tcp://127.0.0.1:-1", "'-1' is no port", "65535"),
        ("tcp://127.0.0.1: 5", "' 5' is no port", "65535"),
        ("tcp://127.0.0.1:\u0665", "is no port", "65535"),
        ("tcp:// 127.0.0.1:5", "' 127.0.0.1' is no host", "interface"),
        ("tcp://::1:5", "'::1' is no host", "interface"),
        ("tcp://lo;127.0.0.1:5", "is no host", "interface"),
    ],
)
def test_what_is_malformed_is_named_with_its_place(address: str, words: str, hint: str):
    fault = bind_fault("plugin.echo.bind[0]", address)
    assert fault is not None
    assert fault.place == "plugin.echo.bind[0]"
    assert words in fault.message
    assert hint in fault.hint


@given(st.text(st.sampled_from("tcpin:/*.[];0159lo x@")) | st.text().map("tcp://127.0.0.1:".__add__) | st.text())
def test_any_text_gets_a_verdict(text: str):
    fault = bind_fault("x", text)
    assert fault is None or (fault.message.isprintable() and fault.hint)


@pytest.mark.parametrize(
    ("address", "host"),
    [("tcp://127.0.0.1:5", "127.0.0.1"), ("tcp://[::1]:5", "::1"), ("tcp://*:*", "*"), ("ipc:///x", None)],
)
def test_the_host_of_an_address(address: str, host: str | None):
    assert tcp_host(address) == host


def test_the_addresses_of_the_network_are_looked_at_as_they_are_written():
    table = {
        "frontend_port": "tcp://:x", "backend_port": "ipc://{runtime}/backend", "config_pub_port": "6001",
        "bind_address": "a b",
    }  # fmt: skip
    assert [fault.place for fault in network_faults(table)] == ["network.frontend_port", "network.bind_address"]
    assert network_faults({"frontend_port": 5, "backend_port": "", "config_pub_port": ["x"]}) == []
    assert network_faults(None) == network_faults("x") == []


def test_a_malformed_address_of_the_network_is_told_beside_the_other_faults():
    with pytest.raises(ConfigError) as caught:
        read_config(None, ["network.frontend_port=tcp://:x", "wire.bach=1"])
    assert {fault.place for fault in caught.value.faults} == {"network.frontend_port", "wire.bach"}
