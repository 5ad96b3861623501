"""The client process of ``musicquest.py``: downloads one song with ``MusicClient`` and says how long that took.

The song is told by name, size and digest, as a search would tell it, with the holders it is to come from.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from scale0_musicquest.client import MusicClient
from scale0_musicquest.songs import Hit, Holder, Song


def main() -> None:
    """Download, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("holders", nargs="+")
    options = parser.parse_args()
    hit = Hit(Song(options.name, options.size, options.sha256), tuple(map(Holder, options.holders)))
    with MusicClient(server=options.holders[0]) as client:
        cpu, start = time.process_time(), time.perf_counter()
        client.download(hit, options.target)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "client_cpu_s": cpu}))


if __name__ == "__main__":
    main()
