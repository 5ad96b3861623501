"""The music server."""
