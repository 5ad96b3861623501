"""State machines of the discovery service: they run in the broker's process."""
