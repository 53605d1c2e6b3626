"""The temporal models that a TGN can be: which parts each one has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.nn.tgn.memory_update import Updater

Embedding = Literal["attention", "time"]


@dataclass(frozen=True)
class Form:
    """A model as parts of TGN: Table 1 of Rossi et al., "Temporal graph networks", 2020."""

    updater: Updater | None  # how mail changes memory; None for a model without memory
    embedding: Embedding  # attention over recent events, or the memory moved on by the time since it changed
    layers: int  # of attention, a hop each
    mail_embeds: bool = False  # whether mail has the embedding of the other end in place of its memory


FORMS = {
    "tgn": Form("gru", "attention", 1),
    "jodie": Form("rnn", "time", 0),
    "dyrep": Form("rnn", "attention", 1, mail_embeds=True),
    "tgat": Form(None, "attention", 2),
}
