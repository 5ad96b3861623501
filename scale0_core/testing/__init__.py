"""What the tests of a plugin need, shipped with the core.

``Script`` writes a conversation with one service down as a test. ``check_service`` is the one line that every
plugin's tests should have. ``SimNetwork`` runs many nodes on virtual time, with faults. The pytest fixture
``scale0_broker`` starts real brokers.
"""

from __future__ import annotations

from scale0_core.testing.broker import BrokerStarter, ProcessBroker, RealBroker, ThreadBroker
from scale0_core.testing.conformance import ConformanceError, ConformanceReport, check_service
from scale0_core.testing.contract import StrictHost
from scale0_core.testing.disabled import check_disabled, manage
from scale0_core.testing.flavours import Flavour
from scale0_core.testing.killing import KilledBroker
from scale0_core.testing.programs import in_forked_child, killed_program
from scale0_core.testing.script import Script
from scale0_core.testing.simbroker import SimBroker
from scale0_core.testing.simclient import SimClient, SimWorker
from scale0_core.testing.simconnection import NetCounts, Weather
from scale0_core.testing.simdisk import DiskCrashed, SimDisk
from scale0_core.testing.simnet import SimFailure, SimNetwork
from scale0_core.testing.simnode import SimNode
from scale0_core.testing.simsession import SimSession
from scale0_core.testing.slowdisk import SlowDisk

__all__ = [
    "BrokerStarter",
    "ConformanceError",
    "ConformanceReport",
    "DiskCrashed",
    "Flavour",
    "KilledBroker",
    "NetCounts",
    "ProcessBroker",
    "RealBroker",
    "Script",
    "SimBroker",
    "SimClient",
    "SimDisk",
    "SimFailure",
    "SimNetwork",
    "SimNode",
    "SimSession",
    "SimWorker",
    "SlowDisk",
    "StrictHost",
    "ThreadBroker",
    "Weather",
    "check_disabled",
    "check_service",
    "in_forked_child",
    "killed_program",
    "manage",
]
