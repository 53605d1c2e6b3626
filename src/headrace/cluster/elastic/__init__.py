"""Elastic workers: stateless tensor tasks as bytes, executors that run them, and a controller that counts each result once."""

from headrace.cluster.elastic.control.patience import Patience
from headrace.cluster.elastic.control.records import CallRecord, Counts
from headrace.cluster.elastic.controller import Controller
from headrace.cluster.elastic.executors.aws_lambda import LambdaExecutor
from headrace.cluster.elastic.executors.pool import Call, PoolExecutor, Usage, WorkerLostError
from headrace.cluster.elastic.executors.ray import RayExecutor
from headrace.cluster.elastic.executors.threads import ThreadExecutor
from headrace.cluster.elastic.message import pack, unpack
from headrace.cluster.elastic.objects import FolderObjects, Objects, Requests, S3Objects, open_objects
from headrace.cluster.elastic.operations import operation
from headrace.cluster.elastic.payload import Reference, TaskError, pack_task, read_result
from headrace.cluster.elastic.step import Step
from headrace.cluster.elastic.work import Worker, run_task

__all__ = [
    "Call",
    "CallRecord",
    "Controller",
    "Counts",
    "FolderObjects",
    "LambdaExecutor",
    "Objects",
    "Patience",
    "PoolExecutor",
    "RayExecutor",
    "Reference",
    "Requests",
    "S3Objects",
    "Step",
    "TaskError",
    "ThreadExecutor",
    "Usage",
    "Worker",
    "WorkerLostError",
    "open_objects",
    "operation",
    "pack",
    "pack_task",
    "read_result",
    "run_task",
    "unpack",
]
