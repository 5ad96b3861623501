"""Every configuration through every format: it comes back, from each into each, with the same hash."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.cli.convert import SCHEMAS, Source, convert
from scale0_core.config.formats import MAX_BYTES, config_from_text, config_to_text
from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig
from scale0_core.config.tree import Node, from_tree, to_tree, tree_hash
from scale0_core.errors import ConfigDataError, FormatError
from scale0_core.plugins import load_format

from .strategies import ANY_TEXTS, configs

FORMATS = {name: load_format(name) for name in ("JSON", "XML", "ZFL")}
ALL = [*FORMATS, "TOML"]
PLAIN = {schema: configs(cls) for schema, cls in SCHEMAS.items()}
ANY = {schema: configs(cls, ANY_TEXTS) for schema, cls in SCHEMAS.items()}


def hash_of(config: Any) -> str:
    return tree_hash(to_tree(config, "x"))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(data=st.data())
def test_any_configuration_comes_back_through_every_format(name, schema, data):
    config = data.draw(PLAIN[schema])
    text = config_to_text(FORMATS[name], config, schema)
    again, faults = config_from_text(FORMATS[name], text, SCHEMAS[schema], schema)
    assert (again, faults) == (config, [])
    assert hash_of(again) == hash_of(config)
    assert tree_hash(FORMATS[name].read(text)) == tree_hash(to_tree(config, schema))


@pytest.mark.parametrize("schema", SCHEMAS)
@settings(deadline=None)
@given(data=st.data())
def test_any_configuration_comes_back_through_any_chain_of_formats(schema, data):
    config = data.draw(PLAIN[schema])
    chain = data.draw(st.permutations(ALL))
    text = convert(Source("test", config_to_text(FORMATS["JSON"], config, schema), "JSON"), schema, chain[0])
    for before, after in itertools.pairwise([*chain, "JSON"]):
        text = convert(Source("test", text, before), schema, after)
    assert config_from_text(FORMATS["JSON"], text, SCHEMAS[schema], schema) == (config, [])


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(data=st.data())
def test_what_a_format_cannot_express_is_refused_and_never_changed(name, schema, data):
    config = data.draw(ANY[schema])
    try:
        text = config_to_text(FORMATS[name], config, schema)
    except FormatError:
        return
    assert config_from_text(FORMATS[name], text, SCHEMAS[schema], schema) == (config, [])


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", ALL)
@settings(deadline=None)
@given(data=st.binary())
def test_any_bytes_are_converted_or_refused(name, schema, data):
    with contextlib.suppress(ConfigDataError):
        assert convert(Source("test", data, name), schema, "json")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("services", [(), ("all",), ("echo",), ("",), ("", "echo"), ("echo", "mail")])
def test_lists_of_any_length_survive(name, services):
    config = NetworkConfig(services=services, peers=services)
    again, _ = from_tree(NetworkConfig, FORMATS[name].read(config_to_text(FORMATS[name], config, "network")), "network")
    assert again == config


def test_lists_numbers_and_truth_look_in_json_like_what_they_are():
    text = config_to_text(FORMATS["JSON"], NetworkConfig(frontend_port="6001", peers=("p",), services=()), "network")
    for line in (b'"frontend_port": 6001', b'"config_service": true', b'"liveness": 3', b'"services": []'):
        assert line in text
    assert b'"peers": [\n      "p"\n    ]' in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("JSON", b'{"broker": {"identity": "a", "frontend_port": "6001", "group_config": {"name": "east"}}}'),
        ("JSON", b'{"identity": "a", "frontend_port": 6001, "group_config": [{"name": "east"}]}'),
        ("XML", b'<network identity="a" frontend_port="6001"><group_config name="east"/></network>'),
        ("ZFL", b"broker\n    identity = a\n    frontend_port = 6001 # c\n    group_config\n        name = east\n"),
        ("ZFL", b"identity = a\nfrontend_port = 6001\ngroup_config\n    name = east\n"),
    ],
)  # fmt: skip
def test_texts_written_by_hand_mean_the_same(name, text):
    expected = NetworkConfig(identity="a", frontend_port=6001, group_config=(GroupConfig("east"),))
    assert config_from_text(FORMATS[name], text, NetworkConfig, "network") == (expected, [])


def test_a_client_is_given_its_part_in_any_format():
    own = GroupConfig("east")
    config = NetworkConfig(identity="b", users=(), group="east").client_config("c", ["echo"], own)
    for fmt in FORMATS.values():
        text = config_to_text(fmt, config, "client")
        assert config_from_text(fmt, text, ClientConfig, "client") == (config, [])
        assert b"frontend_port" not in text
        assert b"prefered_broker" in text


# a plugin that fails


class Broken:
    name = "BROKEN"

    def read(self, data: bytes) -> Node:
        raise KeyError("on purpose")

    def write(self, node: Node) -> bytes:
        raise KeyError("on purpose")


def test_a_format_that_raises_something_else_is_a_format_error():
    with pytest.raises(FormatError, match="the plugin for BROKEN failed: KeyError"):
        config_from_text(Broken(), b"", ClientConfig, "client")
    with pytest.raises(FormatError, match="the plugin for BROKEN failed: KeyError"):
        config_to_text(Broken(), ClientConfig(), "client")


def test_a_text_that_is_too_long_never_reaches_the_plugin():
    with pytest.raises(FormatError, match="bytes"):
        config_from_text(Broken(), b" " * (MAX_BYTES + 1), ClientConfig, "client")
