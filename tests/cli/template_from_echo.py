"""Make the template of ``scale0 plugin new`` from plugins/echo: ``python tests/cli/template_from_echo.py``.

plugins/echo is written by hand; the template never is. A test compares the two.
"""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ECHO = ROOT / "plugins" / "echo"
TEMPLATE = ROOT / "scale0_core" / "cli" / "template"

AUTHOR, LICENCE = "The Scale0 developers", "Apache-2.0"

PLACEHOLDERS = (
    (r"scale0-echo", "scale0-@dist@"),
    (AUTHOR, "@author@"),
    (re.escape(f'license = "{LICENCE}"'), 'license = "@license@"'),
    (r"Echo", "@Name@"),
    (r"(?<!click\.)echo", "@name@"),  # ECHO stays: it is a command of the protocol, not the plugin's name
)


NOT_SOURCE = (".*", "__pycache__", "build", "dist", "*.egg-info", "*.py[cod]", "*.so")
"""What tools leave behind; not asked of git, which a machine with nothing but Python has not."""


def echo_files() -> dict[Path, str]:
    """Give the files of plugins/echo that belong to it, without what tools left there."""
    paths = (path.relative_to(ECHO) for path in sorted(ECHO.rglob("*")) if path.is_file())
    return {path: (ECHO / path).read_text(encoding="utf-8") for path in paths if not any(map(_is_left, path.parts))}


def _is_left(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in NOT_SOURCE)


def as_new(text: str) -> str:
    """Leave out what a new plugin has not: options that were spelled in another way before."""
    return re.sub(r"broker_option\([^)]*\)", "broker_option()", text)


def marked(text: str) -> str:
    """Put placeholders into a text or a path."""
    for pattern, placeholder in PLACEHOLDERS:
        text = re.sub(pattern, placeholder, text)
    return text


def main() -> None:
    """Write the template anew."""
    shutil.rmtree(TEMPLATE, ignore_errors=True)
    for path, text in echo_files().items():
        target = TEMPLATE / (marked(path.as_posix()) + ".tmpl")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(marked(as_new(text)), encoding="utf-8")


if __name__ == "__main__":
    main()
