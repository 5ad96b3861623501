"""The config_xml plugin of Scale0: configurations as XML."""
