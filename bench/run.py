"""Run all benches, or those named, and write the figures to docs/results.md when the run was a full one.

A full run takes some minutes; ``--quick``, or naming benches as in ``python bench/run.py wire.py``, only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results.md"
BENCHES = (
    "wire.py", "tasks.py", "startup.py", "idle.py", "heartbeats.py", "zpipes.py", "majordomo.py", "musicquest.py",
    "robust.py", "faults.py", "majordomo_faults.py",
)  # fmt: skip

HEADING = """# Results

The figures of the last full run, written by `python bench/run.py` (`tox run -e bench`).
[How to read them](../bench/README.md). Ratios travel between machines, absolute figures do not.
"""


def main() -> int:
    """Run the benches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", help=f"files to run: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="shorter, and nothing is written")
    options = parser.parse_args()
    parts = []
    for bench in options.benches or BENCHES:
        command = [f"bench/{bench}", *(["--quick"] if options.quick else [])]
        text, figures = run(command)
        parts.append(page_part(command, text, figures))
    if not options.quick and not options.benches:
        date = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d")
        RESULTS.write_text(f"{HEADING}\nRun of {date}.\n\n" + "\n".join(parts), encoding="utf-8")
        print(f"written: {RESULTS}")
    return 0


def run(command: list[str]) -> tuple[str, Mapping[str, Any]]:
    """Run one bench, show what it prints, and give its text and its figures."""
    print(f"$ python {' '.join(command)}", flush=True)
    ended = subprocess.run(
        [sys.executable, *command, "--json"],
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=True,
    )
    *lines, last = ended.stdout.rstrip().splitlines()
    text = "\n".join(lines).strip()
    print(text, flush=True)
    return text, json.loads(last)


def page_part(command: list[str], text: str, figures: Mapping[str, Any]) -> str:
    """Write the part of the page for one bench."""
    named = json.dumps(figures, indent=2)
    return f"""## {command[0]}

```console
$ python {" ".join(command)}
{text}
```

<details><summary>JSON</summary>

```json
{named}
```

</details>
"""


if __name__ == "__main__":
    sys.exit(main())
