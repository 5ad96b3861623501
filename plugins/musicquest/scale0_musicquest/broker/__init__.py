"""The music broker: knows all servers, and gives each client one."""
