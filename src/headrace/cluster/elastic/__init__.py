"""Full-graph training with elastic workers: what they may compute, and how many of them there are."""

from headrace.cluster.elastic.autotune import Autotuner, Change
from headrace.cluster.elastic.norms import refuse_batch_norms

__all__ = ["Autotuner", "Change", "refuse_batch_norms"]
