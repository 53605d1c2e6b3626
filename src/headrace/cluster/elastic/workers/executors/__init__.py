"""Where tasks run: threads, processes of Ray, calls of AWS Lambda. Each is an `Executor` whose size may change."""
