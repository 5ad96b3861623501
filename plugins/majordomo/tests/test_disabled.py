"""The service of a broker that is disabled."""

from __future__ import annotations

from scale0_core.testing import check_disabled


def test_it_is_silent_while_the_broker_is_disabled(scale0_broker):
    request = [b"", b"MDPC01", b"mmi.service", b"echo"]
    check_disabled(scale0_broker(["majordomo"]), "majordomo", "requests", request)
