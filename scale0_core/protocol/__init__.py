"""The Scale0 wire protocol, without I/O."""
