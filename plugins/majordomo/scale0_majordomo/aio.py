"""Majordomo for programs with asyncio: ``async with Client() as client: await client.call("upper", "hello")``."""

from __future__ import annotations

from scale0_majordomo.client.aio import *
from scale0_majordomo.client.codec import CallOptions as CallOptions
from scale0_majordomo.client.errors import *
from scale0_majordomo.client.session import Request as Request
