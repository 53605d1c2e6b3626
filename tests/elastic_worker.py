"""Operations for tests of elastic workers, and a worker that ends itself at a step. Worker processes import this module."""

import os
import signal
import time

import torch

from headrace.cluster.elastic import Worker, operation
from headrace.cluster.elastic.workers.handler import answer


@operation("test.dense")
def dense(options, arrays):
    product = torch.relu(arrays["x"] @ arrays["weight"])
    return {"y": product, "sum": product.sum(), "pid": torch.tensor(os.getpid()), "threads": torch.tensor(torch.get_num_threads())}


@operation("test.sleep")
def sleep(options, arrays):
    time.sleep(options["seconds"])
    return {"pid": torch.tensor(os.getpid())}


@operation("test.sleep_first")
def sleep_first(options, arrays):
    """Slow in the first of its calls only."""
    if _first(options["marker"]):
        time.sleep(options["seconds"])
    return {"x": arrays["x"]}


@operation("test.fail")
def fail(options, arrays):
    raise ArithmeticError(options["message"])


@operation("test.large")
def large(options, arrays):
    return {"y": torch.arange(options["size"], dtype=torch.uint8)}


@operation("test.hoard")
def hoard(options, arrays):
    hoarded = []
    for _ in range(options["megabytes"]):
        hoarded.append(torch.ones(1 << 20, dtype=torch.uint8))
        time.sleep(0.001)
    return {}


@operation("test.exit")
def leave(options, arrays):
    os._exit(3)


def _first(marker):
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _end_once(step, header):
    options = header["options"]
    if options.get("end_at") == step.name and _first(options["marker"]):
        os.kill(os.getpid(), signal.SIGKILL)


def _leave_once(step, header):
    options = header["options"]
    if options.get("end_at") == step.name and _first(options["marker"]):
        raise SystemExit("a thread, which nobody can kill, has ended")


_process = Worker(observe=_end_once)
_thread = Worker(observe=_leave_once)


def run(payload):
    return _process.run(payload)


def run_in_thread(payload):
    return _thread.run(payload)


def handle(event, context):
    return answer(event, run)
