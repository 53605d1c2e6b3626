"""The flow: stages, bounded run-ahead, times and traces."""

from headrace.pipeline.pipeline import Pipeline, Stage, StageTimes
from headrace.pipeline.trace import Span, Trace

__all__ = ["Pipeline", "Span", "Stage", "StageTimes", "Trace"]
