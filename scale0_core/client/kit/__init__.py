"""The one client layer, for the core and for plugins: links, routes, engines, calls."""
