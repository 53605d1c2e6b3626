"""Edge lists to a dataset directory, streamed, in bounded memory."""

from headrace._sizes import format_size
from headrace.graph.ingest.build import Progress, ingest
from headrace.graph.ingest.memory import parse_size
from headrace.graph.ingest.options import IngestOptions, IngestReport
from headrace.graph.ingest.problems import IngestError

__all__ = [
    "IngestError",
    "IngestOptions",
    "IngestReport",
    "Progress",
    "format_size",
    "ingest",
    "parse_size",
]
