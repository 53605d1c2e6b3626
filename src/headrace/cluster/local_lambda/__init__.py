"""AWS Lambda on this machine: its Invoke API on loopback, in front of workers that speak its Runtime API, with its limits."""

from headrace.cluster.local_lambda.server import LocalLambda

__all__ = ["LocalLambda"]
