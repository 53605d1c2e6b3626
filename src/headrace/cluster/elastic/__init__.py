"""Full-graph training by intervals, whose tensor work goes to elastic workers: tasks, their schedule, versions of the weights."""

from headrace.cluster.elastic.autotune import Autotuner, Change
from headrace.cluster.elastic.norms import refuse_batch_norms
from headrace.cluster.elastic.parameter_store import ParameterStore
from headrace.cluster.elastic.schedule import Flow, Schedule
from headrace.cluster.elastic.task import Direction, Stages, Task, stages

__all__ = [
    "Autotuner",
    "Change",
    "Direction",
    "Flow",
    "ParameterStore",
    "Schedule",
    "Stages",
    "Task",
    "refuse_batch_norms",
    "stages",
]
