"""Edge lists to a dataset directory, streamed, in bounded memory."""

from headrace.graph.ingest.build import Progress, id_map_path, ingest
from headrace.graph.ingest.memory import format_size, parse_size
from headrace.graph.ingest.options import IngestOptions, IngestReport, help_of
from headrace.graph.ingest.problems import IngestError

__all__ = [
    "IngestError",
    "IngestOptions",
    "IngestReport",
    "Progress",
    "format_size",
    "help_of",
    "id_map_path",
    "ingest",
    "parse_size",
]
