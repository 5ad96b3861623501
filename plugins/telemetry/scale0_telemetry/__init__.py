"""The telemetry plugin of Scale0: events of all services, as Parquet files and in a pipe."""
