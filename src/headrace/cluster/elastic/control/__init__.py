"""What a controller is made of: tasks and calls under way, patience, records. None of it has a clock, a thread or a lock."""
