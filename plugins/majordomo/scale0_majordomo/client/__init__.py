"""Call services and offer them: ``Client`` and ``Worker``; for asyncio, the same names in ``scale0_majordomo.aio``.

::

    with Client() as client:
        print(client.call("upper", "hello").text)
"""

from scale0_majordomo.client.codec import CallOptions as CallOptions
from scale0_majordomo.client.errors import *
from scale0_majordomo.client.session import Request as Request
from scale0_majordomo.client.sync import *
