"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0_core.api import BatchReport, BrokerContext, PluginInfo, RunningBroker, Service, hookimpl
from scale0_telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from scale0_telemetry.sink import Sink


class _Here:
    """What hooks leave for one another: there is one broker in a process."""

    settings: TelemetrySettings | None = None
    context: BrokerContext | None = None
    sink: Sink | None = None


@hookimpl
def scale0_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="events of all services, as Parquet files and in a pipe",
        api=(1, 1),
        settings=TelemetrySettings,
        observes_events=True,
    )


@hookimpl
def scale0_services(settings: TelemetrySettings, context: BrokerContext) -> list[Service]:
    """Take note of the settings; there is no service."""
    _Here.settings, _Here.context = settings, context
    return []


@hookimpl
def scale0_started(broker: RunningBroker) -> None:
    """Start the thread that stores events."""
    from scale0_telemetry.sink import Sink  # pyarrow is large, and most brokers run without

    assert _Here.settings is not None
    assert _Here.context is not None
    _Here.sink = Sink(_Here.settings, _Here.context, broker)
    _Here.sink.start()


@hookimpl
def scale0_batch(report: BatchReport) -> None:
    """Hand the events of a turn to the thread."""
    if _Here.sink is not None:
        _Here.sink.offer(report)


@hookimpl
def scale0_stopping(broker: RunningBroker) -> None:
    """Have everything stored that is waiting."""
    if _Here.sink is not None:
        _Here.sink.stop()
        _Here.sink = None
