"""`scale0 plugins`: what is installed, what it offers, and what is wrong with it."""

import textwrap

import pytest


def rows(done):
    return {row["name"]: row for row in done.json["items"]}


def test_ls_lists_what_is_installed(scale0, plugin_text):
    scale0.install("mock", plugin_text)
    done = scale0("plugins", "ls", "-o", "json")
    assert (done.code, done.json["schema"]) == (0, "scale0.plugins/1")
    assert rows(done)["mock"] == {
        "name": "mock", "version": "7.0", "distribution": "scale0-mock", "enabled": False, "safe_by_default": False,
        "state": "ok", "summary": "made by a test",
    }  # fmt: skip
    assert (rows(done)["echo"]["enabled"], rows(done)["echo"]["safe_by_default"]) == (True, True)


def test_ls_heeds_the_configuration_and_shows_what_is_missing(scale0, plugin_text):
    scale0.install("mock", plugin_text)
    scale0.install("broken", "import no_such_module")
    scale0.write("broker.toml", '[broker]\nplugins = ["mock", "absent"]')
    found = rows(scale0("plugins", "ls", "-o", "json"))
    told = {name: (found[name]["enabled"], found[name]["state"]) for name in ("mock", "absent", "broken")}
    assert told == {"mock": (True, "ok"), "absent": (True, "missing"), "broken": (False, "failed")}
    assert "no_such_module" in found["broken"]["summary"]
    assert "scale0 plugins doctor" in scale0("plugins", "ls").err


def test_ls_works_with_a_wrong_configuration(scale0):
    scale0.write("broker.toml", "[wire]\nbatch = 0")
    done = scale0("plugins", "ls")
    assert done.code == 0
    assert "echo" in done.out
    assert "warning: broker.toml is wrong" in done.err


def test_show_tells_settings_hooks_and_services(scale0):
    done = scale0("plugins", "show", "echo", "-o", "json")
    assert (done.code, done.json["schema"]) == (0, "scale0.plugin/1")
    settings = {setting["name"]: setting for setting in done.json["settings"]}
    assert settings["max_waiting"]["takes"] == "a whole number"
    assert settings["max_waiting"]["default"] == 10_000
    assert all(setting["help"] for setting in settings.values())
    assert done.json["hooks"] == ["scale0_plugin_info", "scale0_services"]
    (service,) = done.json["services"]
    runtime = scale0.environment["XDG_RUNTIME_DIR"]
    assert (service["kind"], service["bind"]) == ("ROUTER", [f"ipc://{runtime}/scale0/default/echo"])
    text = scale0("plugins", "show", "echo").out
    for words in ("Settings in [plugin.echo]", "max_waiting", "scale0_services", "echo.requests  ROUTER"):
        assert words in text


def test_show_of_what_is_not_there_names_the_nearest(scale0):
    done = scale0("plugins", "show", "eccho")
    assert done.code == 1
    assert "did you mean echo?" in done.err


def test_show_of_what_cannot_be_loaded_says_why(scale0):
    scale0.install("mock", "raise RuntimeError('oh')")
    done = scale0("plugins", "show", "mock")
    assert done.code == 78
    assert "RuntimeError: oh" in done.err


def test_doctor_has_nothing_to_say_of_what_is_well(scale0):
    done = scale0("plugins", "doctor", "echo")
    assert (done.code, done.out) == (0, "1 plugin tried: nothing wrong\n")


RAISES = """
@hookimpl
def scale0_services(self):
    raise ValueError("no luck")
"""
SERVICE = """
class Service:
    name = {name!r}
    endpoints = {endpoints}
    receive = next_deadline = on_deadline = None
@hookimpl
def scale0_services(self):
    return [self.Service()]
"""
BAD_ENDPOINT = SERVICE.format(name="bad", endpoints="{'front': Endpoint(kind='ROUTER', bind=('nowhere',))}")
SAME_NAME = SERVICE.format(name="echo", endpoints="{}")
NO_SUCH_HOOK = """
@hookimpl
def scale0_servces(self):
    return []
"""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("del scale0_plugin_info", "it has no hook scale0_plugin_info"),
        (NO_SUCH_HOOK, "did you mean scale0_services?"),
        (RAISES, "ValueError: no luck"),
        (BAD_ENDPOINT, "'nowhere' is not an address"),
        (SAME_NAME, "has a service named echo as well"),
    ],
    ids=["import", "no info", "no such hook", "raises", "bad endpoint", "same name"],
)
def test_doctor_tells_what_why_consequence_and_remedy(scale0, plugin_text, more, words):
    scale0.install("mock", plugin_text + textwrap.indent(more, "    "))
    done = scale0("plugins", "doctor", "-o", "json")
    assert (done.code, done.json["schema"]) == (1, "scale0.plugin-problems/1")
    (problem,) = done.json["items"]
    assert words in problem["why"]
    assert (problem["plugin"], all(problem.values())) == ("mock", True)
    text = scale0("plugins", "doctor", "mock").out
    for label in ("why  ", "consequence  ", "next  ", "1 plugin tried: 1 problem"):
        assert label in text


def test_doctor_tries_the_command_and_the_settings(scale0, plugin_text):
    scale0.install("mock", plugin_text, command="import no_such_module")
    scale0.write("broker.toml", "[plugin.mock]\nx = 1")
    whys = [problem["why"] for problem in scale0("plugins", "doctor", "mock", "-o", "json").json["items"]]
    assert len(whys) == 2
    assert any("no_such_module" in why for why in whys)
    assert "the plugin has no settings" in whys


def test_doctor_names_the_setting_of_a_bad_address_and_the_nearest_name_of_a_level(scale0):
    scale0.write("broker.toml", '[log.levels]\necco = "debug"\n[plugin.echo]\nbind = ["tcp://127.0.0.1:5x", "here"]')
    done = scale0("plugins", "doctor", "-o", "json")
    assert done.code == 1
    told = {(row["plugin"], row["why"], row["remedy"]) for row in done.json["items"]}
    port = "it is a number of at most 65535, or * for any free one"
    example = "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path"
    assert told == {
        ("ecco", "no plugin of that name is installed", "did you mean echo?"),
        ("echo", "plugin.echo.bind[0]: 'tcp://127.0.0.1:5x': '5x' is no port", port),
        ("echo", "plugin.echo.bind[1]: 'here' is not an address", example),
    }
    assert "log.levels.ecco" in scale0("plugins", "doctor").out


def test_doctor_of_what_is_not_there(scale0):
    assert scale0("plugins", "doctor", "absent").code == 1
