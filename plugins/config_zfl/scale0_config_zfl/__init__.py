"""The config_zfl plugin of Scale0: configurations as ZFL."""
