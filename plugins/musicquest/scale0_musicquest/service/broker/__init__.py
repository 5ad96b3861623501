"""The music broker."""
