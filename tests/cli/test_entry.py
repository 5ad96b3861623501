"""The entry: quick, lazy, and not to be broken by a plugin."""

import os
import subprocess
import sys

import pytest

from scale0_core import __version__
from scale0_core.cli import COMMANDS

pytestmark = pytest.mark.real

LARGE = {"attr", "attrs", "pluggy", "rich", "stevedore", "zmq"}


def test_help_lists_the_commands_of_the_core_and_of_plugins(scale0):
    scale0.install("mock", command="raise RuntimeError('imported')")
    done = scale0("--help")
    assert done.code == 0
    for name in (*COMMANDS, "echo", "mock"):
        assert f"\n  {name} " in done.out
    assert "The plugin mock." in done.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_large(arguments):
    code = (
        "import sys; from scale0_core.cli import main\n"
        f"try: main({arguments})\n"
        f"finally: print(sorted({LARGE} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=300)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("arguments", [["plugins", "ls"], ["config", "check"], ["errors"], ["plugin", "--help"]])
def test_zmq_is_imported_only_by_commands_that_talk(scale0, arguments):
    code = (
        f"import sys; from scale0_core.cli import main\ntry: main({arguments})\nfinally: sys.exit('zmq' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=scale0.environment, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0


def test_help_is_quick(scale0):
    def seconds():
        before = os.times()
        scale0("--help")
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # the CPU's time and the best of some: what is measured is the program, not what else the machine does meanwhile
    assert min(seconds() for _ in range(5)) < 0.15


def test_says_its_version(scale0):
    assert (scale0("--version").out, scale0("--version").code) == (f"scale0 {__version__}\n", 0)


def test_an_unknown_command_is_answered_with_the_nearest(scale0):
    done = scale0("plugns")
    assert done.code == 64
    assert "there is no command plugns" in done.err
    assert "did you mean plugin" in done.err


def test_wrong_usage_is_told_in_four_parts_and_exits_with_64(scale0):
    done = scale0("broker", "--nmae", "x", "-o", "json")
    assert (done.code, done.error["exit"], done.error["schema"]) == (64, 64, "scale0.error/1")
    assert "--nmae" in done.error["what"]
    assert done.error["remedy"] == "scale0 broker --help"


def test_a_command_that_cannot_be_imported_is_a_sentence_and_leaves_the_others_alone(scale0):
    scale0.install("mock", command="import no_such_module")
    done = scale0("mock", "-o", "json")
    assert (done.code, done.error["error"], done.error["plugin"]) == (78, "PluginImportError", "mock")
    assert "no_such_module" in done.error["why"]
    assert "Traceback" not in done.err
    assert scale0("--help").code == 0
    assert scale0("errors", "404").code == 0


def test_a_command_whose_module_exits_is_a_sentence(scale0):
    scale0.install("mock", command="raise SystemExit(0)")
    assert scale0("mock").code == 78


def test_a_command_that_is_none_is_a_sentence(scale0):
    scale0.install("mock", command="main = 'not a command'")
    assert "is str, not a click command" in scale0("mock").err


def test_a_plugin_cannot_take_the_name_of_a_command_of_the_core(scale0, plugin_text):
    scale0.install("version", plugin_text, command="raise RuntimeError")
    assert scale0("version").code == 0
    assert "the core has a command of that name" in scale0("plugins", "doctor", "version").out


@pytest.mark.parametrize(
    ("environment", "shown"), [({}, False), ({"SCALE0_DEBUG": "1"}, True), ({"SCALE0_DEBUG": "0"}, False)]
)
def test_an_unexpected_error_is_a_bug_with_a_traceback_only_on_demand(scale0, environment, shown):
    scale0.install("mock", command="import click\n@click.command()\ndef main():\n    raise KeyError('oh')")
    done = scale0("mock", **environment)
    assert done.code == 70
    assert "please report it" in done.err
    assert "command.py, line 4" in done.err
    assert ("Traceback" in done.err) is shown


def test_debug_can_be_asked_for_on_the_command_line(scale0):
    scale0.install("mock", command="import click\n@click.command()\ndef main():\n    raise KeyError('oh')")
    assert "Traceback" in scale0("--debug", "mock").err


def test_an_interrupt_exits_with_130_without_a_word(scale0):
    scale0.install("mock", command="import click\n@click.command()\ndef main():\n    raise KeyboardInterrupt")
    done = scale0("mock")
    assert (done.code, done.err.strip()) == (130, "")


def test_a_forbidden_file_exits_with_77(scale0):
    scale0.install(
        "mock", command="import click\n@click.command()\ndef main():\n    raise PermissionError(13, 'no', '/x')"
    )
    done = scale0("mock")
    assert done.code == 77
    assert "this user may not use /x" in done.err


def test_a_closed_pipe_is_no_news(scale0):
    line = " ".join(scale0.command("errors")) + " | true; exit ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", line], env=scale0.environment, capture_output=True, encoding="utf-8", check=False, timeout=300
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_completion_knows_names_without_importing_commands(scale0):
    scale0.install("mock", command="raise RuntimeError('imported')")
    done = scale0(_SCALE0_COMPLETE="bash_complete", COMP_WORDS="scale0 mo", COMP_CWORD="1")
    assert done.out == "plain,mock\n"
    done = scale0(_SCALE0_COMPLETE="bash_complete", COMP_WORDS="scale0 plugins ", COMP_CWORD="2")
    assert done.out.split() == ["plain,doctor", "plain,ls", "plain,resume", "plain,show"]


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_completion_prints_a_script_that_says_how_to_install_it(scale0, shell, word):
    done = scale0("completion", shell)
    assert done.code == 0
    assert word in done.out
    assert done.out.startswith(f"# to have completion in every {shell}: ")
