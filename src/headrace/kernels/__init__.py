"""The operations everything else is made of. Each stands beside its plain-torch reference."""

from headrace.kernels._aggregate import aggregate, aggregate_reference
from headrace.kernels._gather import gather, gather_reference

__all__ = ["aggregate", "aggregate_reference", "gather", "gather_reference"]
