"""`python -m headrace.cluster.local_lambda`: serve a function until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import threading
from dataclasses import fields

from headrace.cluster.local_lambda.limits import Limits
from headrace.cluster.local_lambda.server import LocalLambda


def main() -> None:
    """Print the endpoint, and wait."""
    parser = argparse.ArgumentParser(prog="python -m headrace.cluster.local_lambda", description=LocalLambda.__doc__)
    parser.add_argument("--handler", default="headrace.cluster.elastic.workers.handler.handle")
    parser.add_argument("--function", default="headrace")
    parser.add_argument("--port", type=int, default=0)
    for limit in fields(Limits):
        parser.add_argument(f"--{limit.name}", type=type(limit.default), default=limit.default)
    options = vars(parser.parse_args())
    limits = Limits(**{limit.name: options.pop(limit.name) for limit in fields(Limits)})
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with LocalLambda(limits=limits, quiet=False, **options) as aws:
        print(aws.endpoint_url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
