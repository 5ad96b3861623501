"""The listening page."""
