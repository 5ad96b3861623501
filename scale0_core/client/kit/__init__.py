"""The one client layer: connections, calls, handlers and flows, on which the clients of the core and of plugins stand.

=============  =========================================================================================================
``sessions``   what a session must provide, a base, and the limits of its connections; read this first
``route``      which broker: a name, an address, or several; going to another one
``link``       sockets of clients, the shared context, one connection and its monitor
``listening``  whether anybody listens at a local address
``engine``     runs a session on links: connects, reconnects, hands in messages, sends what the session wants
``drivers``    who turns engines: ``ThreadDriver``, ``CallerDriver``; in ``loop`` ``LoopDriver`` for asyncio
``flows``      an operation as a generator, run by either; ``Stream`` and ``AsyncStream``
``calls``      open calls with deadlines and retries; ``Caller``: the operations of a client that calls services
``serving``    handlers in threads, in ``loop_serving`` as tasks; ``Serving``: the operations of a worker
``errors``     one tree of errors
=============  =========================================================================================================

A plugin's client is a session (``sessions.Session``), for calls also a codec (``calls.Codec``); flows; two surfaces of
signatures and docstrings, one for threads and one for asyncio; and subclasses of the errors. It never imports zmq.
``calls``, ``errors``, ``flows`` and ``sessions`` do no I/O, so sessions, codecs and flows may import them.
"""
