"""Whether the advisor chooses well on a GPU: kernels of each width too."""

from __future__ import annotations

from headrace.bench.advise import measure
from headrace.bench.gpu import needs_gpu
from headrace.bench.measure import Row
from headrace.bench.setting import Setting


def run(setting: Setting) -> list[Row]:
    """The same ten graphs as on the CPU."""
    return measure(setting, needs_gpu().type)
