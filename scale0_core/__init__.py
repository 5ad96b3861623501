"""Scale0: a broker container for ZeroMQ services.

Applications use ``scale0_core.client``; plugins import ``scale0_core.api``; tests of plugins use
``scale0_core.testing``. This module imports nothing, so that the command line stays quick.
"""

__version__ = "0.1.0"
