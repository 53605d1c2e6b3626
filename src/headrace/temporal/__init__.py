"""Event streams in training: schedules, node memory, prepared batches, heuristics. Imports nothing of the training loop."""

from headrace.temporal.schedule import Schedule, Turn, parse_parallel, schedule

__all__ = ["Schedule", "Turn", "parse_parallel", "schedule"]
