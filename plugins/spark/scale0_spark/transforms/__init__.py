"""From events to tables: functions from DataFrame to DataFrame, without I/O."""
