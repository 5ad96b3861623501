"""The config_json plugin of Scale0: configurations as JSON."""
