"""A new plugin from the template, which is ``plugins/echo`` with placeholders in the place of its name.

Files are ``template/**/*.tmpl``. In their text and in their paths these are replaced:

============  ====================================  ===================
placeholder   what it stands for                    for ``my_thing``
============  ====================================  ===================
`@name@`      the plugin, its table, its command    `my_thing`
`@dist@`      the distribution, after `scale0-`     `my-thing`
`@Name@`      the beginning of its classes' names   `MyThing`
`@author@`    who made it
`@license@`   the licence, as SPDX writes it
============  ====================================  ===================
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from scale0_core.errors import FolderInUseError, PluginNameError

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".tmpl"

RESERVED = frozenset({"core"})
"""scale0-core and scale0_core are taken by the core itself."""


def check_name(name: str, taken: Iterable[str]) -> None:
    """Refuse a name that a plugin cannot have."""
    why = ""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        why = "a name has 1 to 40 small letters, digits and underscores, and begins with a letter"
    elif keyword.iskeyword(name):
        why = "it is a word of the language Python"
    elif name in RESERVED or name in taken:
        why = "there is a plugin or a command of that name already"
    if why:
        raise PluginNameError(f"a plugin cannot be named {name!r}", why, "nothing was written", "choose another name")


def render(name: str, author: str, licence: str) -> dict[Path, str]:
    """Give the files of a plugin, by their path in its folder."""
    values = {
        "@name@": name,
        "@dist@": dist_of(name),
        "@Name@": "".join(part.capitalize() for part in name.split("_")),
        "@author@": _in_toml(author),
        "@license@": _in_toml(licence),
    }
    return {
        Path(_filled(path.relative_to(TEMPLATE).as_posix().removesuffix(SUFFIX), values)): _filled(
            path.read_text(encoding="utf-8"), values
        )
        for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}"))
    }


def write(folder: Path, files: Mapping[Path, str]) -> None:
    """Write the files of a plugin into a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderInUseError(
            f"{folder} is in use already",
            "it is not a folder" if not folder.is_dir() else "the folder is not empty",
            "nothing was written",
            "choose another place: scale0 plugin new NAME --dir FOLDER",
        )
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def dist_of(name: str) -> str:
    """Give the name of a plugin as its distribution has it, without ``scale0-``."""
    return name.strip("_").replace("_", "-")


def _in_toml(text: str) -> str:
    # what JSON does to quotes, backslashes and control characters is right for TOML too
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _filled(text: str, values: Mapping[str, str]) -> str:
    # in one go, so that a value that looks like a placeholder stays as it is
    return re.sub("|".join(values), lambda match: values[match[0]], text)
