"""`scale0 config`: everything that is wrong at once, and what a broker would run with."""

import sys
import uuid

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WRONG = """
[broker]
nmae = "x"
[wire]
batch = 0
[plugin.echo]
bind = 3
max_wating = 1
[plugin.ehco]
"""


def test_defaults_are_right(scale0):
    done = scale0("config", "check")
    assert (done.code, done.out) == (0, "embedded defaults: valid\n")


def test_all_faults_of_the_core_and_of_plugins_are_told_at_once(scale0):
    scale0.write("broker.toml", WRONG)
    done = scale0("config", "check", "-o", "json")
    assert (done.code, done.json["schema"], done.json["valid"]) == (78, "scale0.config-check/1", False)
    places = {fault["place"] for fault in done.json["faults"]}
    assert places == {"broker.nmae", "wire.batch", "plugin.echo.bind", "plugin.echo.max_wating", "plugin.ehco"}


def test_faults_are_told_to_people_with_hints(scale0):
    path = scale0.write("other.toml", WRONG)
    done = scale0("config", "check", str(path))
    assert (done.code, done.out) == (78, "")
    for words in ("has 5 faults", "did you mean name?", "did you mean max_waiting?", "did you mean echo?", "next"):
        assert words in done.err


def test_overrides_are_checked_even_beside_other_faults(scale0):
    done = scale0("config", "check", "--set", "wire.bach=1", "--set", "plugin.echo.bnd=2", "-o", "json")
    assert {fault["place"] for fault in done.json["faults"]} == {"wire.bach", "plugin.echo.bnd"}


@pytest.mark.parametrize(("text", "words"), [("[broker", "is not TOML"), (None, "cannot be read")])
def test_a_file_that_cannot_be_read_is_a_fault(scale0, text, words):
    if text is not None:
        scale0.write("broker.toml", text)
    done = scale0("config", "check", "broker.toml")
    assert done.code == 78
    assert words in done.err


def test_a_plugin_that_cannot_be_loaded_is_a_warning(scale0):
    scale0.install("mock", "raise RuntimeError('oh')")
    scale0.write("broker.toml", '[broker]\nplugins = ["mock", "echo", "absent"]\nkeep_going = true')
    done = scale0("config", "check")
    assert done.code == 0
    assert "warning: plugin mock cannot be imported" in done.err
    assert "warning: there is no plugin absent" in done.err
    assert done.out == "broker.toml: valid, but see 2 warnings\n"


def test_a_plugin_that_is_named_and_cannot_be_loaded_is_a_fault(scale0):
    scale0.write("broker.toml", '[broker]\nplugins = ["absent"]')
    done = scale0("config", "check")
    assert (done.code, scale0("broker", "--name", f"test-{uuid.uuid4().hex[:8]}").code) == (78, 78)
    assert "broker.plugins: absent cannot be used" in done.err


def test_a_required_plugin_that_cannot_be_loaded_is_a_fault(scale0):
    scale0.write("broker.toml", '[broker]\nplugins = ["absent"]\nrequired = ["absent"]')
    done = scale0("config", "check")
    assert done.code == 78
    assert "broker.required: absent cannot be used" in done.err


def test_a_required_plugin_that_is_not_enabled_is_a_fault(scale0):
    scale0.write("broker.toml", '[broker]\nplugins = []\nrequired = ["echo"]')
    done = scale0("config", "check")
    assert (done.code, scale0("broker", "--name", f"test-{uuid.uuid4().hex[:8]}").code) == (78, 78)
    assert "broker.required: echo is not enabled" in done.err


def test_a_fault_in_the_table_of_a_plugin_that_is_not_enabled_is_a_warning(scale0):
    scale0.write("broker.toml", "[broker]\nplugins = []\n[plugin.echo]\nbnd = 3")
    done = scale0("config", "check", "-o", "json")
    assert (done.code, done.json["valid"]) == (0, True)
    (warning,) = done.json["warnings"]
    assert (warning["why"], warning["remedy"]) == ("unknown setting", "did you mean bind?")
    assert "the plugin is not enabled" in scale0("config", "check").err


def test_a_level_of_a_plugin_that_is_not_there_is_a_fault(scale0):
    scale0.write("broker.toml", '[log.levels]\necko = "debug"\necho = "info"\nnetwork = "error"\n[wire]\nbach = 1')
    done = scale0("config", "check", "-o", "json")
    assert done.code == 78
    faults = {fault["place"]: fault["hint"] for fault in done.json["faults"]}
    assert faults == {"log.levels.ecko": "did you mean echo?", "wire.bach": "did you mean batch?"}


def test_a_malformed_address_of_the_network_is_a_fault(scale0):
    scale0.write("broker.toml", '[network]\nfrontend_port = "tcp://:x"\nbackend_port = "tpc://127.0.0.1:5"')
    done = scale0("config", "check")
    assert (done.code, scale0("broker", "--name", f"test-{uuid.uuid4().hex[:8]}").code) == (78, 78)
    assert "network.frontend_port: 'tcp://:x': 'x' is no port" in done.err
    assert "network.backend_port: 'tpc://127.0.0.1:5': there is no transport 'tpc' (did you mean tcp?)" in done.err


def warnings(done):
    return {warning["why"].partition(": ")[0]: warning for warning in done.json["warnings"]}


def test_an_address_that_cannot_be_opened_is_a_warning_with_its_table_and_key(scale0):
    # 192.0.2.0/24 belongs to nobody (RFC 5737)
    bad = ["tcp://:x", "tcp://192.0.2.1:5", "tcp://nosuch9:*", "ipc:///no/such/folder/x", "xyz://a"]
    scale0.write("broker.toml", f"[wire]\ninsecure = true\n[plugin.echo]\nbind = {['tcp://127.0.0.1:*', *bad]}")
    done = scale0("config", "check", "-o", "json")
    assert (done.code, done.json["valid"]) == (0, True)
    found = warnings(done)
    assert set(found) == {f"plugin.echo.bind[{number}]" for number in range(1, 6)}
    for number, words in enumerate(
        ["'x' is no port", "this machine has no 192.0.2.1", "has no nosuch9", "no folder /no/such/folder", "'xyz'"], 1
    ):
        assert words in found[f"plugin.echo.bind[{number}]"]["why"]
    assert {warning["consequence"] for warning in found.values()} == {"the broker runs without it"}
    assert all(warning["remedy"] for warning in found.values())


def test_an_address_that_others_can_reach_is_told_unless_that_is_allowed(scale0):
    scale0.write(
        "broker.toml", '[network]\nbind_address = "0.0.0.0"\nfrontend_port = 0\n[plugin.echo]\nbind = ["tcp://*:*"]'
    )
    done = scale0("config", "check", "-o", "json")
    ((place, warning),) = warnings(done).items()
    (fault,) = done.json["faults"]
    assert (place, fault["place"]) == ("plugin.echo.bind[0]", "network.bind_address"), "no broker without its own"
    assert "wire.insecure = true" in warning["remedy"]
    assert "wire.insecure = true" in fault["hint"]
    assert (done.code, scale0("broker", "--name", f"test-{uuid.uuid4().hex[:8]}").code) == (78, 78)
    allowed = scale0("config", "check", "--set", "wire.insecure=true", "-o", "json")
    assert (allowed.code, allowed.json["warnings"]) == (0, [])


def test_an_address_that_cannot_be_opened_is_a_fault_where_the_plugin_is_required(scale0):
    scale0.write("broker.toml", '[broker]\nrequired = ["echo"]\n[plugin.echo]\nbind = ["tcp://:x"]')
    done = scale0("config", "check")
    assert (done.code, scale0("broker", "--name", f"test-{uuid.uuid4().hex[:8]}").code) == (78, 78)
    assert "broker.required: echo cannot be used: plugin.echo.bind[0]: 'tcp://:x': 'x' is no port" in done.err
    assert "warning" not in done.err


def test_nothing_is_said_of_addresses_of_plugins_that_are_not_enabled(scale0):
    scale0.write("broker.toml", '[broker]\nplugins = []\n[plugin.echo]\nbind = ["tcp://:x"]')
    assert scale0("config", "check", "-o", "json").json["warnings"] == []


def test_show_gives_a_file_that_says_the_same(scale0):
    scale0.write("broker.toml", '[log]\nlevels.echo = "debug"\n[plugin.echo]\nmax_waiting = 7')
    shown = scale0("config", "show", "--set", "broker.name=north").out
    tree = tomllib.loads(shown)
    assert tree["broker"]["name"] == "north"
    assert tree["log"]["levels"] == {"echo": "debug"}
    assert tree["plugin"]["echo"]["max_waiting"] == 7
    again = scale0.write("again.toml", shown)
    as_data = scale0("config", "show", str(again), "-o", "json").json
    assert (as_data["schema"], as_data["plugin"]) == ("scale0.config/1", tree["plugin"])


def test_show_refuses_what_is_wrong(scale0):
    scale0.write("broker.toml", WRONG)
    assert scale0("config", "show").code == 78


def test_the_environment_names_the_file(scale0):
    path = scale0.write("elsewhere.toml", '[broker]\nname = "east"')
    assert scale0("config", "show", "-o", "json", SCALE0_CONFIG=str(path)).json["broker"]["name"] == "east"
