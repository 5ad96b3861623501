"""A music server: has songs, finds those of others, and sends them to clients."""
