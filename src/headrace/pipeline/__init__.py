"""The flow: stages, bounded run-ahead, times and traces."""

from headrace.pipeline.pipeline import Pipeline, Stage, StageTimes
from headrace.pipeline.stream import Fenced, OnStream
from headrace.pipeline.trace import Span, Trace
from headrace.pipeline.versions import Versions
from headrace.pipeline.window import Window

__all__ = ["Fenced", "OnStream", "Pipeline", "Span", "Stage", "StageTimes", "Trace", "Versions", "Window"]
