"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0_core.api import BatchReport, BrokerContext, PluginInfo, RunningBroker, Service, hookimpl
from scale0_telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from scale0_telemetry.observer.sink import Sink


class TelemetryPlugin:
    """Stores the events of one broker."""

    def __init__(self) -> None:
        self._settings = TelemetrySettings()
        self._context: BrokerContext | None = None
        self._sink: Sink | None = None

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="events of all services, as Parquet files and in a pipe",
            api=(2, 2),
            settings=TelemetrySettings,
            observes_events=True,
        )

    @hookimpl
    def scale0_services(self, settings: TelemetrySettings, context: BrokerContext) -> list[Service]:
        """Take note of the settings; there is no service."""
        self._settings, self._context = settings, context
        return []

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        """Start the thread that stores events."""
        from scale0_telemetry.observer.sink import Sink  # pyarrow is large, and most brokers run without

        assert self._context is not None
        self._sink = Sink(self._settings, self._context, broker)
        self._sink.start()

    @hookimpl
    def scale0_batch(self, report: BatchReport) -> None:
        """Hand the events of a turn to the thread."""
        if self._sink is not None:
            self._sink.offer(report)

    @hookimpl
    def scale0_stopping(self, broker: RunningBroker) -> None:
        """Have everything stored that is waiting."""
        if self._sink is not None:
            self._sink.stop()
            self._sink = None
