"""The core's own plugin: logs where the broker can be reached, and what could not be sent.

A built-in feature that uses the same hooks as any plugin from outside.
"""

from __future__ import annotations

from collections import Counter

from scale0_core.container.host import HostCounts
from scale0_core.hookspecs import hookimpl
from scale0_core.logs import get_logger
from scale0_core.plugin_types import API_VERSION, BatchReport, PluginInfo, RunningBroker

LOG = get_logger("broker")

INTERVAL = 10.0
"""Seconds between two lines on failed sends."""


class Reporter:
    """Logs start and stop, and failed sends by reason at a bounded rate."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, str, str]] = Counter()
        self._logged = float("-inf")

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the reporter."""
        return PluginInfo(summary="logs addresses, failed sends and totals", api=(API_VERSION, API_VERSION))

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        """Log the address of every socket."""
        for service, sockets in broker.addresses.items():
            for socket, addresses in sockets.items():
                for address in addresses:
                    LOG.info("serving", service=service, socket=socket, address=address)
        # what does not serve is not ready, whoever waits for it
        LOG.info(
            "ready" if broker.state == "active" else broker.state,
            name=broker.name,
            wire=broker.wire,
            services=len(broker.addresses),
        )

    @hookimpl
    def scale0_batch(self, report: BatchReport) -> None:
        """Collect failed sends, and log them now and then."""
        for service, failure in report.failed:
            self._failed[service, failure.socket, failure.reason] += 1
        if self._failed and report.now - self._logged >= INTERVAL:
            self._logged = report.now
            self._log_failed()

    @hookimpl
    def scale0_stopping(self, broker: RunningBroker) -> None:
        """Log the totals of every service."""
        self._log_failed()
        for service, counts in broker.counts.items():
            LOG.info(
                "totals", service=service, received=counts.received, sent=counts.sent, errors=counts.errors,
                undelivered=sum(counts.undelivered.values()), dropped=sum(counts.dropped.values()),
                jobs=counts.jobs, jobs_failed=counts.jobs_failed, slow=counts.slow, **_reasons(counts),
            )  # fmt: skip

    def _log_failed(self) -> None:
        for (service, socket, reason), count in self._failed.items():
            LOG.warning("messages could not be sent", service=service, socket=socket, reason=reason, count=count)
        self._failed.clear()


def _reasons(counts: HostCounts) -> dict[str, str]:
    """Say why messages were not sent or dropped, where there were any."""
    undelivered = [f"{socket} {reason}: {count}" for (socket, reason), count in sorted(counts.undelivered.items())]
    dropped = [f"{reason}: {count}" for reason, count in sorted(counts.dropped.items())]
    told = {"undelivered_by": "; ".join(undelivered), "dropped_by": "; ".join(dropped)}
    return {name: text for name, text in told.items() if text}
