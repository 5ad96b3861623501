"""``MusicClient`` for programs with asyncio: ``async with MusicClient() as client: await client.search("quest")``."""

from __future__ import annotations

from scale0_musicquest.client.aio import *
from scale0_musicquest.client.errors import *
from scale0_musicquest.client.transfer import Progress as Progress
