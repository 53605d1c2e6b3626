"""`SavedRows`: rows, relations and an encoder as part of a checkpoint, and the best of them so far."""

from __future__ import annotations

import copy
from io import BytesIO
from typing import Any

import torch

from headrace.nn import Decoder
from headrace.store import Partitioned, TrainedArray, TrainedRows
from headrace.train.links.encoder import LinkEncoder
from headrace.train.run import Run


class SavedRows:
    """What a checkpoint says of rows, relations and an encoder.

    Rows in memory are part of the checkpoint's file, and the best so far are kept beside them. Rows on disk are a store of their
    own with its own checkpoints: all else is saved with those, in one commit, and a run ends with its last rows.
    """

    def __init__(self, rows: TrainedRows, decoder: Decoder, encoder: LinkEncoder | None = None) -> None:
        self.rows, self.decoder, self.encoder = rows, decoder, encoder
        self.best: dict[str, Any] | None = None

    @property
    def keeps_best(self) -> bool:
        """Whether a run ends with its best rows, not with its last."""
        return isinstance(self.rows, TrainedArray)

    def keep(self) -> None:
        """These are the best so far."""
        if isinstance(self.rows, TrainedArray):
            self.best = {"rows": self.rows.rows.clone(), "decoder": copy.deepcopy(self.decoder.state_dict())}
            if self.encoder is not None:
                self.best["encoder"] = copy.deepcopy(self.encoder.state_dict())

    def forget(self) -> None:
        """The present ones are the best."""
        self.best = None

    def restore_best(self) -> None:
        """Put the best in place of the last."""
        if self.best is not None and isinstance(self.rows, TrainedArray):
            self.rows.rows.copy_(self.best["rows"])
            self.decoder.load_state_dict(self.best["decoder"])
            if self.encoder is not None:
                self.encoder.load_state_dict(self.best["encoder"])
            self.best = None

    def save(self, run: Run, state: dict[str, Any]) -> None:
        """Write a checkpoint."""
        state = {**state, "decoder": self.decoder.state_dict()}
        if self.encoder is not None:
            state["encoder"] = self.encoder.state_dict()
        if isinstance(self.rows, Partitioned):
            data = BytesIO()
            torch.save({**state, "log_position": run.log_position()}, data)
            self.rows.checkpoint(data.getvalue())
            return
        assert isinstance(self.rows, TrainedArray)
        rows = {"rows": self.rows.rows, "row_state": self.rows.state, "calls": self.rows.calls}
        run.save_checkpoint({**state, **rows, "best": self.best})

    def load(self, run: Run) -> dict[str, Any] | None:
        """Put everything as the last checkpoint has it; the rest of what it says, or None where there is none."""
        if isinstance(self.rows, Partitioned):
            if not isinstance(self.rows.extra, bytes):
                return None
            found: dict[str, Any] = torch.load(BytesIO(self.rows.extra), weights_only=True, map_location="cpu")
        else:
            if not run.has_checkpoint():
                return None
            found = run.load_checkpoint()
            assert isinstance(self.rows, TrainedArray)
            self.rows.rows.copy_(found["rows"])
            self.rows.state.copy_(found["row_state"])
            self.rows.calls, self.best = found["calls"], found["best"]
        self.decoder.load_state_dict(found["decoder"])
        if self.encoder is not None:
            self.encoder.load_state_dict(found["encoder"])
        return found
