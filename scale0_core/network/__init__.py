"""The Scale0 protocol, the broker's side, as a built-in plugin: sessions, dispatch, registry, configuration."""
