"""Edge lists to a dataset directory, streamed, in bounded memory."""

from headrace._sizes import format_size
from headrace.graph.ingest.build import ingest
from headrace.graph.ingest.edges.spooled import Progress
from headrace.graph.ingest.files.understood import Understood
from headrace.graph.ingest.memory import parse_size
from headrace.graph.ingest.options import IngestOptions, IngestReport
from headrace.graph.ingest.problems import IngestError

__all__ = [
    "IngestError",
    "IngestOptions",
    "IngestReport",
    "Progress",
    "Understood",
    "format_size",
    "ingest",
    "parse_size",
]
