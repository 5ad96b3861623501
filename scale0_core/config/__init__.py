"""broker.toml as attrs classes."""
