"""The data pipeline of Scale0 on Spark. It never runs in a broker's process."""
