"""Zen Music Quest for Scale0: songs on many servers, found and played from anywhere."""
