"""A made-up machine with round figures, for predictions that can be computed by hand."""

from headrace.plan import Machine
from headrace.plan.machine import Product, RowRead

CACHE = 1 << 20


def round_machine(device: str = "cpu", **changes) -> Machine:
    """Rows cost 1 ns per 16 bytes in the cache and 4 ns outside of it; products 1e9 operations per second, streams 1e9 bytes."""
    rates = {CACHE // 2: 1e-9 / 16, 64 * CACHE: 4e-9 / 16}
    reads = tuple(
        RowRead(dtype, table, row, rate * row)
        for dtype in ("float32", "bfloat16")
        for table, rate in rates.items()
        for row in (16, 1024)
    )
    products = tuple(Product(dtype, width, 1e9, 1e9) for dtype in ("float32", "bfloat16") for width in (1, 1024))
    figures = {
        "device": device,
        "name": "made up",
        "threads": 2,
        "cache_bytes": CACHE,
        "near_bytes": 0,
        "stream_rate": 1e9,
        "own_rates": (("float32", 1e9), ("bfloat16", 1e9)),
        "call_seconds": 0.0,
        "sum_seconds": 0.0,
        "layer_seconds": (("float32", 0.0), ("bfloat16", 0.0)),
        "attend_factor": 2.0,
        "reads": reads,
        "products": products,
    }
    return Machine(**{**figures, **changes})
