"""The Scale0 protocol, without I/O: what messages look like, which follow which, and what the codes mean."""
