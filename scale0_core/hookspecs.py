"""Every hook that a plugin may implement.

Hooks run at start, at stop and once per batch of messages, never once per message. Each has a typed caller in
``plugins.py``; one plugin's exception never keeps the others from being called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

from scale0_core.plugin_types import BatchReport, BrokerContext, PluginInfo, RunningBroker
from scale0_core.service import Service

PROJECT = "scale0"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def scale0_plugin_info() -> PluginInfo:  # type: ignore[empty-body]
    """Describe the plugin. The one hook that every plugin must have.

    :return: a summary, the class of its settings, the range of API_VERSION it works with, and whether it may be
        started without being named in broker.toml.

    When it is called: once, right after the plugin was imported; also by ``scale0 plugins ls``.
    Order: the order of names in ``broker.plugins``.
    """


@hookspec
def scale0_services(settings: Any, context: BrokerContext) -> Iterable[Service]:  # type: ignore[empty-body]
    """Make the services that the plugin hosts.

    :param settings: an object of the plugin's settings class, checked; None when it has none.
    :param context: the broker's name and folders, and ``post``, which hands results of the plugin's own threads to its
        services, as those of jobs.
    :return: services without I/O; the core opens their sockets.

    When it is called: once at start, before any socket is open; also by ``scale0 plugins show`` and ``doctor``, so it
    must have no effect beyond what it returns.
    Order: the order of names in ``broker.plugins``.
    """


@hookspec
def scale0_started(broker: RunningBroker) -> None:
    """Take note that the broker runs.

    :param broker: its name, the wire in use, and the addresses of every service.

    When it is called: once, when all sockets are open and before the first message is taken.
    Order: the order of names in ``broker.plugins``, the core's own first.
    """


@hookspec
def scale0_batch(report: BatchReport) -> None:
    """Observe what one turn of the loop did.

    :param report: the time, how long the turn took, messages received by service, messages sent, sends that failed,
        and what services told of (``EventSource``). They are asked for events only if a loaded plugin that has this
        hook says ``observes_events`` in its ``PluginInfo``; otherwise there are none, at no cost.

    When it is called: after each turn of the loop in which messages were received or sent, or something happened that
    a service told of, on the loop's thread: be quick, or hand the report to a thread of your own.
    Order: the order of names in ``broker.plugins``, the core's own first.
    """


@hookspec
def scale0_stopping(broker: RunningBroker) -> None:
    """End the plugin's own threads: the broker is about to stop. What they post until then still arrives.

    :param broker: as in ``scale0_started``, with the counts of every service.

    When it is called: once, after the last message was taken and before the sockets are closed.
    Order: the order of names in ``broker.plugins``, the core's own first.
    """
