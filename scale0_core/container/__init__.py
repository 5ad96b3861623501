"""Hosts services: calls them, delivers what they send, runs their jobs. Knows nothing of the Scale0 protocol."""
