"""What the documentation says is true: links lead somewhere, programs run, commands exist, generated pages are fresh.

Conventions in the pages: a Python block whose first line is ``# runs`` is a complete program; in it
``tcp://127.0.0.1:5555`` stands for the address of an echo service. Blocks of the tutorial that begin with
``# file: PATH`` are files of the plugin it builds. Lines of console blocks that begin with ``$ scale0`` are commands.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from scale0_core.cli import scaffold, scale0
from scale0_core.testing import BrokerStarter

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "bench", "examples", "plugins")
PAGES = sorted({*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))})
PAGES = [page for page in PAGES if not {".build", ".tox", ".venv", "build"} & set(page.parts)]
TUTORIAL = ROOT / "docs" / "tutorial.md"
ECHO_ADDRESS = "tcp://127.0.0.1:5555"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(text_of(page)) if kind == language]


def anchors(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as GitHub makes them."""
    text = BLOCK.sub("", text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def run(*command: str | Path, timeout: float = 120, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=timeout, check=False, **options
    )


# --- links ----------------------------------------------------------------------------------------------------------


def test_the_pages_are_found():
    names = {name_of(page) for page in PAGES}
    assert {"README.md", "ARCHITECTURE.md", "docs/tutorial.md", "plugins/echo/README.md", "bench/README.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_something_that_exists(page: Path):
    broken = []
    for link in LINK.findall(BLOCK.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_leads_to_every_page_of_the_docs():
    index = text_of(ROOT / "docs" / "index.md")
    pages = [page for page in PAGES if page.parts[-2] in ("how-to", "reference", "explanation")]
    assert [name_of(page) for page in pages if f"({page.parts[-2]}/{page.name})" not in index] == []


def test_every_decision_stands_in_the_list():
    folder = ROOT / "docs" / "adr"
    decisions = sorted(page.name for page in folder.glob("0*.md"))
    listed = [link for link in LINK.findall(text_of(folder / "README.md")) if re.match(r"\d", link)]
    assert decisions == list(dict.fromkeys(sorted(listed)))
    assert len({name[:4] for name in decisions}) == len(decisions)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("0*.md")), ids=name_of)
def test_a_decision_has_all_its_parts(page: Path):
    text = text_of(page)
    assert text.startswith(f"# {page.name[:4]} ")
    for part in ("\nStatus: ", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n"):
        assert part in text


# --- what follows from the code ---------------------------------------------------------------------------------------


@pytest.mark.real
def test_generated_pages_are_up_to_date():
    ended = run(sys.executable, ROOT / "docs" / "generate.py", "--check")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_the_code_map_names_every_module_of_the_core():
    page = text_of(ROOT / "ARCHITECTURE.md")
    modules = [path for path in (ROOT / "scale0_core").rglob("*.py") if "template" not in path.parts]
    modules = [path for path in modules if path.name != "__init__.py"]
    assert [name_of(path) for path in modules if path.name not in page] == []


def test_the_tests_that_the_architecture_names_exist():
    tests = "\n".join(text_of(path) for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text_of(ROOT / "ARCHITECTURE.md"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_commands_of_the_readme_are_those_of_tox():
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    readme = text_of(ROOT / "README.md")
    for command in ("pip install tox && tox run -e demo", "pip install tox && tox ", "tox run -e demo -- --once"):
        assert command in readme
    for page in PAGES:
        for name in re.findall(r"tox run -e (\w+)", text_of(page)):
            assert f"testenv:{name}" in tox, name_of(page)
    assert "{posargs}" in tox["testenv:demo"]["commands"]
    assert "pip install tox && tox\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


# --- programs ---------------------------------------------------------------------------------------------------------


def programs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, body in enumerate(block for block in blocks(page, "python") if block.startswith("# runs\n")):
            yield f"{name_of(page)}-{number}", body


PROGRAMS = dict(programs())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_in_the_pages_run(name: str, scale0_broker: BrokerStarter, tmp_path: Path):
    body = PROGRAMS[name]
    if ECHO_ADDRESS in body:
        body = body.replace(ECHO_ADDRESS, scale0_broker(["echo"]).address("echo", "requests"))
    program = tmp_path / "program.py"
    program.write_text(body, encoding="utf-8")
    ended = run(sys.executable, program, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_client_talks_to_a_real_broker(scale0_broker: BrokerStarter):
    broker = scale0_broker(["echo"])
    ended = run(sys.executable, ROOT / "examples" / "echo_client.py", broker.address("echo", "requests"))
    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended.stderr


@pytest.mark.real
def test_the_service_with_jobs_writes_many_entries_with_few_fsyncs():
    ended = run(sys.executable, ROOT / "examples" / "job_service.py")
    told = re.fullmatch(r"1000 entries, 12890 bytes, (\d+) fsyncs\n", ended.stdout)
    assert told, ended.stderr
    assert int(told[1]) < 500


def test_what_the_pages_show_of_the_service_with_jobs_is_in_it():
    source = text_of(ROOT / "examples" / "job_service.py")
    shown = [body for body in blocks(ROOT / "docs" / "how-to" / "work-that-blocks.md", "python") if "journal" in body]
    assert shown
    for line in "".join(shown).splitlines():
        assert line.strip() in ("", "...") or line in source


# --- configurations ---------------------------------------------------------------------------------------------------


def configurations() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "examples").glob("*.toml")):
        yield name_of(path), path.read_text(encoding="utf-8")
    for page in PAGES:
        for number, body in enumerate(blocks(page, "toml")):
            if re.search(r"^\[(broker|wire|log|limits|plugin\.echo)\]", body, re.MULTILINE) and "tally" not in body:
                yield f"{name_of(page)}-{number}", body


CONFIGURATIONS = dict(configurations())


@pytest.mark.real
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_are_valid(name: str, tmp_path: Path):
    file = tmp_path / "broker.toml"
    file.write_text(CONFIGURATIONS[name], encoding="utf-8")
    ended = run(sys.executable, "-m", "scale0_core", "config", "check", str(file))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.real
def test_the_complete_configuration_has_every_setting_at_its_default(tmp_path: Path):
    """But for broker.plugins, which has none, all is as without a file."""

    def shown(*arguments: str) -> list[str]:
        ended = run(sys.executable, "-m", "scale0_core", "config", "show", *arguments, cwd=tmp_path)
        return [line for line in ended.stdout.splitlines() if "source:" not in line]

    embedded = shown("--set", 'broker.plugins=["echo"]')
    assert "[plugin.echo]" in embedded
    assert embedded == shown(str(ROOT / "examples" / "broker.toml"))
    text = (ROOT / "examples" / "broker.toml").read_text(encoding="utf-8")
    keys = [line.partition(" = ")[0] for line in embedded if " = " in line]
    assert [key for key in keys if key not in text] == []


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for body in blocks(page, "console"):
            for line in re.findall(r"^\$ (scale0 .*)$", body, re.MULTILINE):
                yield f"{name_of(page)}: {line}", line


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_in_the_pages_can_be_parsed(name: str):
    words = shlex.split(COMMANDS[name], comments=True)[1:]
    words = [word for word in words if word != "&"]
    if "2>" in words:
        del words[words.index("2>") :]
    command: click.Command = scale0
    context = click.Context(scale0, info_name="scale0")
    while isinstance(command, click.Group):
        found, inner, words = command.resolve_command(context, words)
        assert inner is not None
        command, context = inner, click.Context(inner, info_name=found, parent=context)
    command.make_context(context.info_name, words, parent=context.parent)


# --- the tutorial -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    """Follow the tutorial up to its last test; the plugin is put on the path, with its entry point."""
    folder = tmp_path / "scale0-tally"
    scaffold.write(folder, scaffold.render("tally", "Somebody", "Apache-2.0"))
    for body in blocks(TUTORIAL, "python"):
        if match := re.match(r"# file: (\S+)\n", body):
            assert (folder / match[1]).exists()
            (folder / match[1]).write_text(body[match.end() :], encoding="utf-8")
    for line in re.findall(r"^\$ rm (.*)$", text_of(TUTORIAL), re.MULTILINE):
        for path in line.split():
            (folder / path).unlink()
    (entry,) = [body for body in blocks(TUTORIAL, "toml") if "scale0.commands" in body]
    assert entry in (folder / "pyproject.toml").read_text(encoding="utf-8")
    about = folder / "scale0_tally-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scale0-tally\nVersion: 0.1.0\n", encoding="utf-8")
    entry_points = "[scale0.plugins]\ntally = scale0_tally.plugin:TallyPlugin\n"
    (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    return folder


@pytest.fixture
def environment(tally: Path, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tally), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.real
def test_the_plugin_of_the_tutorial_passes_its_tests(tally: Path, environment: dict[str, str]):
    ended = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tally, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (passed,) = re.findall(r"^(\d+) passed", ended.stdout, re.MULTILINE)
    assert f"\n{passed} passed" in text_of(TUTORIAL)


@pytest.mark.real
def test_the_plugin_of_the_tutorial_runs_with_its_configuration(tally: Path, environment: dict[str, str]):
    (config,) = [body for body in blocks(TUTORIAL, "toml") if "[broker]" in body]
    (tally / "broker.toml").write_text(config, encoding="utf-8")
    ended = run(sys.executable, "-m", "scale0_core", "config", "check", cwd=tally, env=environment)
    assert ended.returncode == 0, ended.stderr
    shown = run(sys.executable, "-m", "scale0_core", "plugins", "show", "tally", cwd=tally, env=environment).stdout
    assert "forget_seconds" in shown


def test_the_list_of_files_in_the_tutorial_is_that_of_a_new_plugin():
    files = [f"scale0-tally/{path.as_posix()}" for path in scaffold.render("tally", "Somebody", "Apache-2.0")]
    listed = [body for body in blocks(TUTORIAL, "console") if "scale0 plugin new tally" in body]
    assert listed[0].splitlines()[1:] == files
