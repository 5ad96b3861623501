"""The only folder of the core that touches sockets, clocks, threads and files."""
