"""What runs tasks: bytes in and out, operations by name, executors, and objects for what is too large for a call."""
