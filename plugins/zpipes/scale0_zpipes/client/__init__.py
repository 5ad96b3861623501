"""Read and write pipes: ``Pipe``; for asyncio, the same names in ``scale0_zpipes.aio``.

::

    with Pipe.open("jobs", "w") as pipe:
        pipe.write(b"hello")
"""

from scale0_zpipes.client.errors import *
from scale0_zpipes.client.sync import *
