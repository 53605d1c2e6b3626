"""Benchmarks: every row is ours, the peers that are installed, and the machine's limit, from one run."""

from collections.abc import Callable
from importlib import import_module

from headrace.bench import advise, aggregate, attend, cache, gather, link, loader, out_of_core, sampling, train, whole_graph
from headrace.bench.measure import Row
from headrace.bench.setting import Setting


def _on_gpu(name: str) -> Callable[[Setting], list[Row]]:
    """A benchmark of the GPU: imported when it is run, for it needs Triton."""

    def run(setting: Setting) -> list[Row]:
        try:
            module = import_module(f"headrace.bench.{name}")
        except ImportError as error:
            raise ValueError(f"this benchmark measures kernels of a GPU, which need Triton: {error}") from None
        found: list[Row] = module.run(setting)
        return found

    return run


BENCHES: dict[str, Callable[[Setting], list[Row]]] = {
    "sampling": sampling.run,
    "gather": gather.run,
    "cache": cache.run,
    "aggregate": aggregate.run,
    "attend": attend.run,
    "loader": loader.run,
    "train": train.run,
    "whole-graph": whole_graph.run,
    "link": link.run,
    "out-of-core": out_of_core.run,
    "advise": advise.run,
    "gpu-aggregate": _on_gpu("gpu_aggregate"),
    "gpu-sampling": _on_gpu("gpu_sampling"),
    "gpu-gather": _on_gpu("gpu_gather"),
    "gpu-epoch": _on_gpu("gpu_epoch"),
    "gpu-tiers": _on_gpu("gpu_tiers"),
    "gpu-attend": _on_gpu("gpu_attend"),
    "gpu-whole-graph": _on_gpu("gpu_whole_graph"),
    "gpu-advise": _on_gpu("gpu_advise"),
    "gpu-link": _on_gpu("gpu_link"),
}

__all__ = ["BENCHES", "Row", "Setting"]
