"""Samplers, pure functions of (seed, epoch, batch), and the samples they return."""

from headrace.sample.hetero import HeteroSample, HeteroSampler
from headrace.sample.hops import Hops
from headrace.sample.mixed import MixedSampler
from headrace.sample.negatives.events import EventNegatives
from headrace.sample.negatives.known import KnownEdges, drawn_as, known_among
from headrace.sample.negatives.negative import Negatives, NegativeSampler, NegativeSampling
from headrace.sample.negatives.shared import SharedNegatives
from headrace.sample.neighbor import NeighborSampler
from headrace.sample.places import Place
from headrace.sample.sample import Block, Sample
from headrace.sample.sampler import Sampler, batch_generator
from headrace.sample.started import StartedSample

__all__ = [
    "Block",
    "EventNegatives",
    "HeteroSample",
    "HeteroSampler",
    "Hops",
    "KnownEdges",
    "MixedSampler",
    "NegativeSampler",
    "NegativeSampling",
    "Negatives",
    "NeighborSampler",
    "Place",
    "Sample",
    "Sampler",
    "SharedNegatives",
    "StartedSample",
    "batch_generator",
    "drawn_as",
    "known_among",
]
