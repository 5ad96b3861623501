"""A broker: configuration, plugins and the loop put together, from start to stop."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import attrs
import zmq

from scale0_core import __version__
from scale0_core.config.files import BrokerConfig, unknown_levels, unknown_tables
from scale0_core.config.folders import broker_context, default_runtime_dir
from scale0_core.config.running import BrokerRecord, RecordFile, record_folder
from scale0_core.config.settings import BrokerSettings
from scale0_core.container.assembly import Assembly
from scale0_core.container.host import ServiceHost
from scale0_core.container.reporter import Reporter
from scale0_core.errors import (
    LEFT_OUT,
    AddressError,
    AddressInUseError,
    ConfigError,
    Exit,
    Fault,
    PluginError,
    PluginStartError,
    RecordError,
    Scale0Error,
    ServiceFaultError,
)
from scale0_core.io.instance import BrokerName
from scale0_core.io.loop import Loop, Station
from scale0_core.logs import get_logger
from scale0_core.network.plugin import NetworkPlugin
from scale0_core.plugin_types import BrokerContext, RunningBroker
from scale0_core.plugins import OWN, PluginSet, installed_plugins
from scale0_core.service import Service

LOG = get_logger("broker")

COLLECT_AFTER = (50_000, 10, 10)
"""New objects after which Python looks for cycles."""


class Broker:
    """One broker. ``open`` it, ``run`` it until ``stop``, ``close`` it; or use it with ``with``."""

    def __init__(self, config: BrokerConfig, plugins: PluginSet | None = None, *, safe_mode: bool = False) -> None:
        self.config = config
        self.core = config.core
        self.plugins = plugins or PluginSet()
        self.safe_mode = safe_mode
        self.loop: Loop | None = None
        self._assembly: Assembly[Station] | None = None
        self._name = BrokerName(self.core.broker.name)
        self._context: BrokerContext | None = None
        self._since = ""
        self._record: RecordFile | None = None
        self._signals = 0
        self._wakes_on_signals = False

    def open(self) -> RunningBroker:
        """Load the plugins, open all sockets and tell the plugins. An error leaves nothing open."""
        settings = self._load()
        self._name.__enter__()
        try:
            _raise_descriptor_limit()
            context = attrs.evolve(broker_context(self.core.broker, os.environ), group=self.core.network.group)
            self._context = context
            make_folders(self.core.broker, context)
            self.loop = Loop(self.core.wire, self.core.limits)
            context = attrs.evolve(context, services=self.loop.container, post=self.loop.post)
            self._assembly = Assembly(self.loop, self._make_host)
            for name in list(self.plugins.plugins):
                self._start(name, settings[name], context, self._assembly)
            self.loop.observers += self.plugins.batch_observers()
            if self.plugins.observes_events:
                self.loop.observe_events()
        except BaseException:
            self.close()
            raise
        running = self.running()
        provider = self.core.network.identity or running.name
        versions = {name: found.version for name, found in installed_plugins().items()}
        self._assembly.register(context.registry, provider, versions, __version__)
        self.loop.container.start(self.loop.clock.now())
        self._keep_record(context)
        try:
            for name, error in self.plugins.started(running).items():
                self._insist(name, error)
        except BaseException:
            self.plugins.stopping(running)  # others have started threads
            self.close()
            raise
        return running

    def _keep_record(self, context: BrokerContext) -> None:
        """Write down for commands and clients where the sockets are, and again when the broker's state changes."""
        folder = record_folder(context.name, context.runtime_dir, os.environ)
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            for each in () if folder == Path(context.runtime_dir) else (folder.parent, folder):
                _make_folder(each)
                _check_private(each)
        except (OSError, AddressError) as error:
            self._without_record(error)
            return
        self._record = RecordFile(folder)
        self._write_record()
        assert self.loop is not None
        self.loop.container.on_suspend.append(self._write_record)

    def _write_record(self) -> None:
        running, context = self.running(), self._context
        assert self._record is not None
        assert context is not None
        addresses = {
            service: {name: tuple(bound) for name, bound in sockets.items()}
            for service, sockets in running.addresses.items()
        }
        record = BrokerRecord(
            name=running.name, pid=os.getpid(), since=self._since, state=running.state,
            config=str(self.config.path.resolve()) if self.config.path else "",
            runtime_dir=str(Path(context.runtime_dir).resolve()), data_dir=str(Path(context.data_dir).resolve()),
            addresses=addresses,
        )  # fmt: skip
        try:
            self._record.write(record)
        except OSError as error:
            self._without_record(error)

    def _without_record(self, error: Exception) -> None:
        LOG.warning(
            "record not written: clients and commands do not find this broker by its name", error=str(error),
            next="set broker.runtime_dir to a folder of its own in /run/scale0",
        )  # fmt: skip

    def _remove_folders(self) -> None:
        """Remove the record, and the folders that were made for it and for the sockets."""
        if self._context is None:
            return
        if self._record is not None:
            self._record.remove()
        with contextlib.suppress(OSError):  # not empty: somebody else uses it
            default_runtime_dir(self._context.name, os.environ).rmdir()

    def running(self) -> RunningBroker:
        """Describe the broker as it runs now."""
        assert self.loop is not None
        assert self._assembly is not None
        return RunningBroker(
            name=self.core.broker.name,
            wire=self.loop.wire.name,
            addresses=self._assembly.addresses,
            counts=self._assembly.counts,
            state=self.loop.container.suspended or "active",
        )

    def run(self) -> None:
        """Serve until ``stop``; then let jobs end, send what is left and close."""
        assert self.loop is not None
        try:
            self.loop.run()
            end = self.loop.clock.now() + self.core.broker.stop_seconds
            unfinished = self.loop.finish(self.core.broker.stop_seconds)
            if unfinished:
                LOG.warning("jobs did not end in time and are given up", jobs=unfinished)
            self.plugins.stopping(self.running())
            self.loop.drain(end)  # what plugins posted while they stopped
        finally:
            self.close()
        if self.loop.failed:
            raise ServiceFaultError(
                "the broker's own service failed too often", self.loop.failed,
                "the broker has stopped, since nobody could reach or manage it", "restart it, and report the log",
            )  # fmt: skip

    def serve(self) -> None:
        """Be the whole process: open, and run until TERM or INT; a second signal ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.open()
        assert self.loop is not None
        self._wakes_on_signals = True
        signal.set_wakeup_fd(self.loop.wake_fd, warn_on_full_buffer=False)
        if self._signals:
            self.loop.stop()  # it came while the sockets were opened
        # a batch makes thousands of tuples that die at once: looking for cycles among them after every 700 is waste
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        self.run()

    def stop(self) -> None:
        """End ``run``. Any thread may use this."""
        if self.loop is not None:
            self.loop.stop()

    def close(self) -> None:
        """Close whatever is open."""
        if self._wakes_on_signals:
            self._wakes_on_signals = False
            signal.set_wakeup_fd(-1)
        if self.loop is not None:
            self.loop.close()
        self._remove_folders()
        self._name.__exit__(None, None, None)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        LOG.info("stopping", signal=signal.Signals(number).name)
        self.stop()

    def _load(self) -> dict[str, object]:
        """Import the plugins and check all their settings at once."""
        broker = self.core.broker
        self.plugins.add("reporter", Reporter())
        self.plugins.add("network", NetworkPlugin(self.config, self._faults, self.plugins.formats))
        if not self.safe_mode:
            self.plugins.load_installed(broker.plugins)
        for name, error in self.plugins.failures.items():
            self._left_out(name, error)
        if not self.safe_mode:
            self._check_required()
        if faults := self._faults(self.config):
            raise ConfigError(self.config.source, tuple(faults))
        return self.plugins.settings(self.config.plugin_tables)[0]

    def _faults(self, config: BrokerConfig) -> list[Fault]:
        """List what is wrong in the tables of plugins; in safe mode nobody looks."""
        if self.safe_mode:
            return []
        _, faults = self.plugins.settings(config.plugin_tables)
        known = {*installed_plugins(), *self.plugins.plugins, *self.plugins.failures}
        return [
            *faults, *unknown_tables(config.plugin_tables, known), *unknown_levels(config.core.log.levels, known)
        ]  # fmt: skip

    def _check_required(self) -> None:
        """Refuse to start when a plugin is required that nobody asked to start."""
        for name in self.core.broker.required:
            if name not in self.plugins.plugins:
                raise PluginError(
                    name, f"the required plugin {name} is not enabled",
                    "broker.required names it, broker.plugins does not (without that list only safe ones are started)",
                    "the broker does not start", f"add {name} to broker.plugins, or take it out of broker.required",
                )  # fmt: skip

    def _make_host(self, service: Service, plugin: str) -> ServiceHost:
        return ServiceHost(service, plugin=plugin, limits=self.core.limits.host_limits(), vital=plugin in OWN)

    def _start(self, name: str, settings: object, context: BrokerContext, assembly: Assembly[Station]) -> None:
        """Make the services of a plugin and open their sockets; all of them, or the plugin is left out."""
        try:
            assembly.start(name, self.plugins.services(name, settings, context))
        except Exception as error:
            failure = _start_failed(name, error, settings)
            self.plugins.fail(name, failure)
            self._left_out(name, failure)

    def _left_out(self, name: str, error: PluginError) -> None:
        """Log that a plugin is left out; raise PluginStartError if the broker is not to run without it."""
        self._insist(name, error)
        problem = error.problem
        LOG.error(problem.what, plugin=name, why=problem.why, consequence=problem.consequence, next=problem.remedy)

    def _insist(self, name: str, error: PluginError) -> None:
        """Raise PluginStartError if the broker is not to run without a plugin that failed."""
        needed_by = self.core.broker.needed_by(name)
        if name in OWN or needed_by:
            since = f", since {needed_by} names this plugin" if needed_by else ""
            remedy = error.problem.remedy
            if needed_by == "broker.plugins":
                remedy += "; or start without it: --set broker.keep_going=true"
            needed = PluginStartError(
                name, error.problem.what, error.problem.why, f"the broker does not start{since}", remedy
            )
            needed.exit_code = error.exit_code
            raise needed from error


def _start_failed(name: str, error: Exception, settings: object) -> PluginError:
    """Return why a plugin did not start, with the exit code that fits the cause."""
    what = "the broker's own service could not be started" if name in OWN else f"plugin {name} could not be started"
    cause = error.__cause__ if isinstance(error, PluginError) else error
    if isinstance(cause, RecordError):
        failure = PluginStartError(name, what, f"{cause.problem.what}: {cause.problem.why}", "", cause.problem.remedy)
        failure.exit_code = cause.exit_code
        return failure
    if name in OWN and not isinstance(cause, Scale0Error):
        why = f"{type(cause).__name__}: {cause}"
        failure = PluginStartError(name, what, why, "", "please report it, with what SCALE0_DEBUG=1 shows")
        failure.exit_code = Exit.BUG
        return failure
    if isinstance(error, PluginError):
        return error
    failure = _not_opened(name, what, error, settings)
    if isinstance(error, AddressInUseError):
        failure.exit_code = error.exit_code
    return failure


def _not_opened(name: str, what: str, error: Exception, settings: object) -> PluginStartError:
    if isinstance(error, AddressError):
        remedy = error.problem.remedy
        if isinstance(getattr(settings, "bind", None), tuple):
            value = f'["ipc://{{runtime}}/{name}"]'  # each broker has a folder of its own
            remedy += f", as in --set 'plugin.{name}.bind={value}', or bind = {value} in [plugin.{name}] of broker.toml"
        return PluginStartError(name, what, f"{error.problem.what}: {error.problem.why}", LEFT_OUT, remedy)
    if isinstance(error, zmq.ZMQError | AttributeError | TypeError | ValueError):
        return PluginStartError(name, what, f"{type(error).__name__}: {error}", LEFT_OUT, "mend its endpoints")
    return PluginStartError(
        name, what, f"{type(error).__name__}: {error}", LEFT_OUT, "see the plugin's own documentation"
    )


def make_folders(broker: BrokerSettings, context: BrokerContext) -> None:
    """Make the folder for sockets, and insist that it is its owner's alone."""
    runtime = Path(context.runtime_dir)
    for folder in (runtime,) if broker.runtime_dir else (runtime.parent, runtime):
        _make_folder(folder)
        _check_private(folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise AddressError(
            f"the folder {folder} cannot be made",
            error.strerror or str(error),
            "the broker has no place for its sockets",
            "make the folder above it, or set broker.runtime_dir to another one",
        ) from error


def _check_private(folder: Path) -> None:
    """Refuse a folder that somebody else owns or may write to: they could put sockets of their own there."""
    about = folder.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise AddressError(
            f"{folder} is not private",
            "another user owns it or may write to it",
            "the broker does not put its sockets there",
            f"chmod 700 {folder}, or set broker.runtime_dir to another folder",
        )


def _raise_descriptor_limit() -> None:
    """Allow as many connections as the system lets this user have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
