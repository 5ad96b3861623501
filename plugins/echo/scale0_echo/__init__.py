"""The echo plugin of Scale0: the smallest useful service, and the pattern for others."""
