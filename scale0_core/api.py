"""All that a plugin may import from the core, and a promise that it stays as long as API_VERSION does."""

from __future__ import annotations

from scale0_core.config.settings import setting
from scale0_core.errors import Problem, Scale0Error
from scale0_core.hookspecs import hookimpl
from scale0_core.logs import Logger, get_logger, printable
from scale0_core.plugin_types import API_VERSION, BatchReport, BrokerContext, PluginInfo, RunningBroker
from scale0_core.service import (
    KIB,
    MIB,
    Effect,
    Endpoint,
    Frames,
    Job,
    JobResult,
    LaterResults,
    Send,
    SendFailure,
    Service,
    SocketKind,
    Undelivered,
)

__all__ = [
    "API_VERSION",
    "KIB",
    "MIB",
    "BatchReport",
    "BrokerContext",
    "Effect",
    "Endpoint",
    "Frames",
    "Job",
    "JobResult",
    "LaterResults",
    "Logger",
    "PluginInfo",
    "Problem",
    "RunningBroker",
    "Scale0Error",
    "Send",
    "SendFailure",
    "Service",
    "SocketKind",
    "Undelivered",
    "get_logger",
    "hookimpl",
    "printable",
    "setting",
]
