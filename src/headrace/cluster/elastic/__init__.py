"""Full-graph training by intervals, whose tensor work goes to elastic workers: tasks, their schedule, versions of the weights."""

from headrace.cluster.elastic.parameter_store import ParameterStore
from headrace.cluster.elastic.schedule import Flow, Schedule
from headrace.cluster.elastic.task import Direction, Stages, Task, stages

__all__ = ["Direction", "Flow", "ParameterStore", "Schedule", "Stages", "Task", "stages"]
