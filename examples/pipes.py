"""Pipes: ``python examples/pipes.py [BROKER]``, where BROKER is a name or the address of a broker's pipes."""

import shutil
import sys
from io import BytesIO

from scale0_zpipes import Pipe

broker = sys.argv[1] if len(sys.argv) > 1 else "default"

# chunks: several may write, one reads
with Pipe.open("example.jobs", "w", broker=broker) as writer:
    for number in range(1000):
        writer.write(b"job %d" % number)

with Pipe.open("example.jobs", "r", broker=broker) as reader:
    print(sum(1 for _ in reader.drain()), "jobs")

# a stream of bytes, as a file
with Pipe.open("example.file", "w", broker=broker) as writer, writer.file() as file:
    shutil.copyfileobj(BytesIO(b"x" * 1_000_000), file)

with Pipe.open("example.file", "r", broker=broker) as reader, reader.file() as file:
    print(len(file.read()), "bytes")
