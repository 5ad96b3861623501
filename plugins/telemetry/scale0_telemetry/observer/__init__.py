"""What stores a broker's events, on a thread of its own in the broker's process."""
