"""`scale0 plugin new`: the template is plugins/echo, and what it makes works."""

import configparser
import difflib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scale0_core.cli import scaffold

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("template_from_echo", Path(__file__).with_name("template_from_echo.py"))
source = importlib.util.module_from_spec(spec)
spec.loader.exec_module(source)

REGENERATE = (
    "plugins/echo is the source of the template; after a change there run: python tests/cli/template_from_echo.py"
)


def test_the_template_is_the_echo_plugin():
    echo = source.echo_files()
    made = scaffold.render("echo", source.AUTHOR, source.LICENCE)
    assert sorted(echo) == sorted(made), REGENERATE
    for path, text in ((path, source.as_new(text)) for path, text in echo.items()):
        changes = "\n".join(difflib.unified_diff(text.splitlines(), made[path].splitlines(), "echo", "template", n=0))
        assert made[path] == text, f"{path} differs:\n{changes}\n{REGENERATE}"


def test_no_trace_of_echo_is_left_under_another_name():
    for path, text in scaffold.render("my_thing", "Me", "MIT").items():
        for word in ("echo", "Echo", "@name@", "@dist@", "@Name@", "@author@", "@license@"):
            assert word not in f"{path}\n{text}".replace("click.echo", ""), f"{word} in {path}"


def test_a_new_plugin_has_no_older_spellings():
    text = scaffold.render("my_thing", "Me", "MIT")[Path("scale0_my_thing/command.py")]
    assert "@kit.broker_option()\n" in text


def test_names_are_written_where_they_belong():
    text = scaffold.render("my_thing", 'The "Me" company', "MIT")[Path("pyproject.toml")]
    for line in (
        'name = "scale0-my-thing"', 'license = "MIT"', 'authors = [{ name = "The \\"Me\\" company" }]',
        'my_thing = "scale0_my_thing.plugin:MyThingPlugin"', 'my_thing = "scale0_my_thing.command:main"',
    ):  # fmt: skip
        assert line in text.splitlines()


def test_a_value_that_looks_like_a_placeholder_stays():
    assert "@name@" in scaffold.render("thing", "@name@", "MIT")[Path("pyproject.toml")]


def test_every_file_can_be_compiled_under_the_longest_name():
    for path, text in scaffold.render("a" * 40, "Me", "MIT").items():
        if path.suffix == ".py":
            compile(text, str(path), "exec")


def test_new_says_what_it_made_and_what_to_do_next(scale0):
    done = scale0("plugin", "new", "my_thing")
    assert done.code == 0
    assert "scale0-my-thing/scale0_my_thing/service.py" in done.out.splitlines()
    assert all((scale0.folder / path).is_file() for path in done.out.splitlines())
    for step in ("cd scale0-my-thing", 'pip install -e ".[testing]"', "pytest", "scale0 plugins ls"):
        assert f"  {step}\n" in done.err


def test_new_in_json_and_elsewhere(scale0):
    done = scale0("plugin", "new", "thing", "--dir", "else/where", "--author", "Me", "-o", "json")
    assert (done.json["schema"], done.json["folder"]) == ("scale0.plugin-new/1", "else/where")
    assert '{ name = "Me" }' in (scale0.folder / "else/where/pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["", "9lives", "Thing", "my-thing", "thing/../..", "a" * 41, "class", "echo", "core", "broker"]
)
def test_new_refuses_names_that_cannot_be(scale0, name):
    done = scale0("plugin", "new", "--", name)
    assert (done.code, done.out) == (64, "")
    assert "a plugin cannot be named" in done.err
    assert [path.name for path in scale0.folder.iterdir() if path.name.startswith("scale0-")] == []


def test_new_never_writes_over_what_exists(scale0):
    mine = scale0.write("scale0-thing/pyproject.toml", "mine")
    done = scale0("plugin", "new", "thing")
    assert done.code == 65
    assert mine.read_text(encoding="utf-8") == "mine"
    assert [path.name for path in mine.parent.iterdir()] == ["pyproject.toml"]


def test_a_new_plugin_installed_beside_the_core_passes_its_tests(scale0, tmp_path):
    def run(*command, folder=tmp_path):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    environment = {key: value for key, value in scale0.environment.items() if key != "PYTHONPATH"}
    # a copy, since a build leaves files behind in the folder it builds from
    core = tmp_path / "core"
    shutil.copytree(ROOT / "scale0_core", core / "scale0_core", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, core)
    scale0("plugin", "new", "my_thing")

    run(sys.executable, "-m", "venv", "venv")
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", str(core), "./scale0-my-thing[testing]")
    made = tmp_path / "scale0-my-thing"
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(made / "tox.ini", encoding="utf-8")
    lanes = [line.replace("{posargs}", "-q").split() for line in tox["testenv"]["commands"].strip().splitlines()]
    assert [words[:3] for words in lanes] == [["pytest", "--lane", "quick"], ["pytest", "--lane", "real"]]
    for words in (["pytest", "-q"], *lanes):
        assert " passed" in run(python, "-m", *words, folder=made)
    assert "my_thing" in run(python, "-m", "scale0_core", "plugins", "ls")
    assert "MyThing service" in run(python, "-m", "scale0_core", "--help")
