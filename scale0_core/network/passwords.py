"""Passwords at rest: salted scrypt, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

COST, BLOCK, PARALLEL = 2**14, 8, 1
_SHAPE = re.compile(r"scrypt\$(\d{1,8})\$(\d{1,3})\$(\d{1,2})\$([A-Za-z0-9+/=]{8,88})\$([A-Za-z0-9+/=]{24,88})")
LARGEST_MEMORY = 256 * 1024 * 1024


def hash_password(password: str, salt: bytes) -> str:
    """Make the text to keep: the parameters, the salt and the hash."""
    digest = _scrypt(password, salt, COST, BLOCK, PARALLEL)
    return "$".join(("scrypt", str(COST), str(BLOCK), str(PARALLEL), _text(salt), _text(digest)))


def password_matches(password: str, kept: str) -> bool:
    """Tell whether a password is the one that was hashed; takes its time, so it is a job."""
    shape = _SHAPE.fullmatch(kept)
    if shape is None:
        return False
    cost, block, parallel = (int(number) for number in shape.groups()[:3])
    if cost * block * 128 > LARGEST_MEMORY or cost & (cost - 1) or cost < 2 or not block or not parallel:
        return False
    try:
        salt, wanted = base64.b64decode(shape[4]), base64.b64decode(shape[5])
    except ValueError:
        return False
    return hmac.compare_digest(_scrypt(password, salt, cost, block, parallel), wanted)


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=LARGEST_MEMORY * 2, dklen=32
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
