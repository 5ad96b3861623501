"""Talk to the echo service with plain pyzmq: ``python examples/echo_client.py ADDRESS``.

The broker logs its addresses at start; ``scale0 plugins show echo`` tells them too.
"""

# does I/O: it is an application

import sys

import zmq

context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
socket = context.socket(zmq.REQ)
socket.rcvtimeo = 5000  # never wait for ever: without this, a REQ socket hangs when nobody answers
socket.connect(sys.argv[1])
socket.send_multipart([b"ECHO", b"", b"hello"])  # command, options, body
print(socket.recv().decode())

# let go of the socket at once, even if nobody ever read what was sent
context.destroy(linger=0)
