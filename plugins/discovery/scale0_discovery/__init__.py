"""The discovery plugin of Scale0: who offers which service, how it is doing, and what changes."""
