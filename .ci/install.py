"""Install packages as pip does, unless that was done in this environment before and none of them has changed since.

``python .ci/install.py -e . -e plugins/echo pytest``: what is installed with ``-e`` changes with its sources, so that
only its pyproject.toml and C are of interest. Without build isolation, which costs seconds for each package.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

STAMP = Path(sys.prefix) / "installed-by-ci"
BUILD_TOOLS = "setuptools>=77"


def wanted(arguments: list[str]) -> str:
    """Return a digest of the arguments and of what pip reads in the folders among them."""
    digest = hashlib.sha256(repr(arguments).encode())
    for argument in arguments:
        folder = Path(re.sub(r"\[.*", "", argument))
        if folder.is_dir():
            sources = (folder / "scale0_core" if argument == "." else folder).rglob("*.c")
            for path in (folder / "pyproject.toml", *sorted(sources)):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: list[str]) -> None:
    """Install these packages if need be."""
    digest = wanted(arguments)
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == digest:
        return
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, BUILD_TOOLS], check=True, timeout=600)
    place = arguments.index("--alone") if "--alone" in arguments else len(arguments)
    pip.append("--no-build-isolation")
    subprocess.run([*pip, *arguments[:place]], check=True, timeout=1800)
    if alone := arguments[place + 1 :]:
        subprocess.run([*pip, "--no-deps", *alone], check=True, timeout=600)
    STAMP.write_text(digest, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
