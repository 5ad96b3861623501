"""Run all benches, or those named, and write the figures to docs/results.md when the run was a full one.

A full run takes some minutes; ``--quick``, or naming benches as in ``python bench/run.py wire.py``, only prints. With
``--write``, the benches named take their old place on the page.
"""

from __future__ import annotations

import argparse
import json
import re
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
    "telemetry.py", "spark.py", "robust.py", "simulation.py", "faults.py", "majordomo_faults.py",
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
    parser.add_argument("--write", action="store_true", help="put the benches named on the page, in full")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("a quick run is not written")
    parts = {} if not options.benches else parts_of(RESULTS.read_text(encoding="utf-8"))
    for bench in options.benches or BENCHES:
        command = [f"bench/{bench}", *(["--quick"] if options.quick else [])]
        parts[bench] = page_part(command, *run(command))
    if options.write or not (options.quick or options.benches):
        date = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d")
        page = [parts[bench] for bench in BENCHES if bench in parts]
        RESULTS.write_text(f"{HEADING}\nLast run on {date}.\n\n" + "\n".join(page), encoding="utf-8")
        print(f"written: {RESULTS}")
    return 0


def parts_of(page: str) -> dict[str, str]:
    """Give the parts of the page by the names of their benches."""
    _, *parts = re.split(r"^(?=## bench/)", page, flags=re.MULTILINE)
    return {part.partition("\n")[0].removeprefix("## bench/"): part.rstrip() + "\n" for part in parts}


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
        timeout=3600,
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
