"""The services of this plugin: state machines without I/O."""
