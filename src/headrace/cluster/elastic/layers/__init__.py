"""What a server does for each kind of layer, between the tasks of its workers: tables of rows, gathers over them, and gradients."""

from headrace.cluster.elastic.layers.attention_layers import AttentionLayers
from headrace.cluster.elastic.layers.kind import Layers
from headrace.cluster.elastic.layers.sum_layers import SumLayers

__all__ = ["AttentionLayers", "Layers", "SumLayers"]
