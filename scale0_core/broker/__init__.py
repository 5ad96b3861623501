"""The broker's own parts that need no I/O."""
