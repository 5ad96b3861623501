"""Pipes for programs with asyncio: ``async with Pipe.open("jobs", "w") as pipe: await pipe.write(b"hello")``."""

from __future__ import annotations

from scale0_zpipes.client.aio import *
from scale0_zpipes.client.errors import *
