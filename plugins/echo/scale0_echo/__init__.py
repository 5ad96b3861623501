"""The echo plugin of Scale0: one service, which sends back what it gets."""
