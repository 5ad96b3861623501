"""All that a plugin may import from the core, and a promise that it stays as long as API_VERSION does."""

from __future__ import annotations

from scale0_core import events, packing
from scale0_core.config.fields import setting
from scale0_core.config.formats import MAX_BYTES as MAX_CONFIG_BYTES
from scale0_core.config.formats import MAX_DEPTH as MAX_CONFIG_DEPTH
from scale0_core.config.formats import Format
from scale0_core.config.tree import Node
from scale0_core.container.container import Container
from scale0_core.container.registry import Change, Provider, ProviderKind, Registry, ServiceStats
from scale0_core.errors import FormatError, Problem, Scale0Error
from scale0_core.events import Event, EventKind
from scale0_core.hookspecs import hookimpl
from scale0_core.logs import Logger, get_logger, printable
from scale0_core.packing import PackedEvents, Packing
from scale0_core.parts import files, journal, records
from scale0_core.parts.backoff import Backoff, backoff_seconds
from scale0_core.parts.envelopes import body_at, split_envelope
from scale0_core.parts.timers import Deadlines
from scale0_core.plugin_types import API_VERSION, BatchReport, BrokerContext, PluginInfo, RunningBroker
from scale0_core.protocol.worker import ProtocolWorker, WorkerCancel, WorkerTask
from scale0_core.service import (
    KIB,
    MIB,
    Connect,
    Connecting,
    Delayed,
    Disconnect,
    Effect,
    Endpoint,
    EventSource,
    FastPath,
    FastPaths,
    Finishing,
    Frames,
    Job,
    JobResult,
    LaterResults,
    PackedEventSource,
    PeerWatcher,
    Send,
    SendFailure,
    Service,
    SocketKind,
    Stopping,
    Undelivered,
)

__all__ = [
    "API_VERSION",
    "KIB",
    "MAX_CONFIG_BYTES",
    "MAX_CONFIG_DEPTH",
    "MIB",
    "Backoff",
    "BatchReport",
    "BrokerContext",
    "Change",
    "Connect",
    "Connecting",
    "Container",
    "Deadlines",
    "Delayed",
    "Disconnect",
    "Effect",
    "Endpoint",
    "Event",
    "EventKind",
    "EventSource",
    "FastPath",
    "FastPaths",
    "Finishing",
    "Format",
    "FormatError",
    "Frames",
    "Job",
    "JobResult",
    "LaterResults",
    "Logger",
    "Node",
    "PackedEventSource",
    "PackedEvents",
    "Packing",
    "PeerWatcher",
    "PluginInfo",
    "Problem",
    "ProtocolWorker",
    "Provider",
    "ProviderKind",
    "Registry",
    "RunningBroker",
    "Scale0Error",
    "Send",
    "SendFailure",
    "Service",
    "ServiceStats",
    "SocketKind",
    "Stopping",
    "Undelivered",
    "WorkerCancel",
    "WorkerTask",
    "backoff_seconds",
    "body_at",
    "events",
    "files",
    "get_logger",
    "hookimpl",
    "journal",
    "packing",
    "printable",
    "records",
    "setting",
    "split_envelope",
]
