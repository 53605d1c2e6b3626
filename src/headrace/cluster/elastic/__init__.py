"""Full-graph training by intervals, whose tensor work goes to elastic workers: tasks, their schedule, and who runs them."""

from headrace.cluster.elastic.autotune import Autotuner, Change
from headrace.cluster.elastic.control.patience import Patience
from headrace.cluster.elastic.control.records import CallRecord, Counts
from headrace.cluster.elastic.controller import Controller
from headrace.cluster.elastic.estimate import check_calls, server_memory
from headrace.cluster.elastic.neighborhood import Neighborhood
from headrace.cluster.elastic.norms import refuse_batch_norms
from headrace.cluster.elastic.parameter_store import ParameterStore
from headrace.cluster.elastic.schedule import Flow, Schedule
from headrace.cluster.elastic.server import Labels, Server
from headrace.cluster.elastic.task import Direction, Stages, Task, stages
from headrace.cluster.elastic.vertex import Vertex
from headrace.cluster.elastic.workers.executors.aws_lambda import LambdaExecutor
from headrace.cluster.elastic.workers.executors.pool import Call, PoolExecutor, Usage, WorkerLostError
from headrace.cluster.elastic.workers.executors.ray import RayExecutor
from headrace.cluster.elastic.workers.executors.threads import ThreadExecutor
from headrace.cluster.elastic.workers.message import pack, unpack
from headrace.cluster.elastic.workers.objects import FolderObjects, MemoryObjects, Objects, Requests, S3Objects, open_objects
from headrace.cluster.elastic.workers.operations import operation
from headrace.cluster.elastic.workers.payload import Reference, TaskError, pack_task, read_result
from headrace.cluster.elastic.workers.shelf import Shelf
from headrace.cluster.elastic.workers.step import Step
from headrace.cluster.elastic.workers.work import Worker, run_task

__all__ = [
    "Autotuner",
    "Call",
    "CallRecord",
    "Change",
    "Controller",
    "Counts",
    "Direction",
    "Flow",
    "FolderObjects",
    "Labels",
    "LambdaExecutor",
    "MemoryObjects",
    "Neighborhood",
    "Objects",
    "ParameterStore",
    "Patience",
    "PoolExecutor",
    "RayExecutor",
    "Reference",
    "Requests",
    "S3Objects",
    "Schedule",
    "Server",
    "Shelf",
    "Stages",
    "Step",
    "Task",
    "TaskError",
    "ThreadExecutor",
    "Usage",
    "Vertex",
    "Worker",
    "WorkerLostError",
    "check_calls",
    "open_objects",
    "operation",
    "pack",
    "pack_task",
    "read_result",
    "refuse_batch_norms",
    "run_task",
    "server_memory",
    "stages",
    "unpack",
]
