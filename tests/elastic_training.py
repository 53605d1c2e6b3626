"""One server of elastic trainings, run by `cluster/elastic/test_training.py` as `elastic_training.py FOLDER CASE...`.

A case is MODEL:FLOW:INTERVALS, with :KIND of data (see `data_of`), and with /resume or /kill=RANK@TASKS: after so many tasks that
rank kills itself; or /late: rank 0 opens its run after others have begun. A flow async2 has a lead of 2. Weights go to
FOLDER/CASE.pt, what each server counted to FOLDER/CASE.RANK.json.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import headrace as hr
from headrace._memory import peak_memory
from headrace.bench.namespaces import sent_bytes
from headrace.cluster import Part
from headrace.cluster.elastic import Controller, Server, server_memory
from headrace.cluster.elastic.layers.sum_layers import SumLayers
from headrace.cluster.elastic.neighborhood import bytes_per_epoch
from headrace.ranks import join
from headrace.store import hash_owners
from headrace.train import NodeOptions, Watcher, node
from headrace.train.fit import open_run
from headrace.train.nodes import elastic

EPOCHS, SERVERS, WIDE = 20, 3, 256
fitting = sys.modules["headrace.train.fit"]  # `headrace.train.fit` is a function too


class WatchedServer(Server):
    """Counts validations, and keeps the last server for whoever asks what it sent."""

    last = None

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        WatchedServer.last, self.validations, self.on_link, self.estimate = self, 0, sent_bytes(), 0

    def validate(self, epoch):
        self.validations += 1
        return super().validate(epoch)

    def facts(self):
        """Bytes that were counted in phase "rows", and those of the formula; those of all phases, and of the interface."""
        (ahead, back), itemsize, traffic = self.work.widths, self.dtype.itemsize, self.at.exchange.traffic
        forward = sum(map(len, self.at.forward.told)) * sum(ahead) * itemsize
        tables = (*self.work.rows.values(), *self.work.scaled.values(), self.work.x) if isinstance(self.work, SumLayers) else ()
        return {
            "rows": traffic["rows"].sent,
            "formula": EPOCHS * bytes_per_epoch(self.at, ahead, itemsize, back=back) + self.validations * forward,
            "sent": sum(phase.sent for phase in traffic.values()),
            "on_link": sent_bytes() - self.on_link,
            "calls": self.controller.counts.calls - self.controller.counts.relaunched,
            "tasks": len(self.at.own_intervals) * (EPOCHS * (2 * len(self.layers) - 1) + self.validations * len(self.layers)),
            "seeds": len(self.labels.of(0, self.at.num_own)["seeds"]),
            "rows_here": max(map(len, tables), default=0),
            "own_and_ghosts": max(self.at.forward.num_src, self.at.backward.num_src),
            "lead": self.most_lead,
            "age": self.most_age,
            "estimate": self.estimate,
            "peak": peak_memory(),
        }


def told_memory(server, **how):
    """Keep what a recipe prints."""
    server.estimate = server_memory(server, **how)
    return server.estimate


def dataset():
    """Some nodes have no neighbor."""
    return hr.generate.community(nodes=300, edges=500, classes=4, features=13, seed=5)


def data_of(kind, folder, rank):
    """`whole`; `bare`: training nodes are those of server 0 alone; `part`: the files of a part, where no other is; `wide`."""
    data = dataset()
    if kind == "part":
        return Part.open(folder / f"part-{rank}")
    if kind == "wide":
        return hr.generate.community(nodes=6000, edges=60_000, classes=4, features=13, seed=5)
    if kind == "bare":
        train = data.splits["train"]
        owner = hash_owners(data.num_nodes, SERVERS).locate(train.long())[0]
        return replace(data, splits=data.splits | {"train": train[owner == 0]})
    return data


def options(model, **more):
    usual = {"hidden": 16, "layers": 2, "heads": 4, "epochs": EPOCHS, "dropout": 0.5, "input_dropout": 0.3, "lr": 0.05}
    usual |= {"class_weights": "balanced", "clip": 0.5, "full_batch": True, "threads": 1, "seed": 3, "validate_every": 10}
    usual |= {"optimizer": "sgd"} | ({"inner_norm": "layer"} if model == "gin" else {})
    return NodeOptions(model=model, **{**usual, **more})


def kill_after(tasks):
    """End this process after so many tasks, as a power cut would."""
    retire, left = Controller.retire, [tasks]

    def counted(controller, key):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        retire(controller, key)

    Controller.retire = counted


def open_late(folder, rank):
    """Have rank 0 open its run after another rank has done a task."""
    retire, marker = Controller.retire, folder / "done"

    def told(controller, key):
        retire(controller, key)
        marker.touch()

    def late_run(*args, **more):
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return open_run(*args, **more)

    if rank == 0:
        fitting.open_run = late_run
    else:
        Controller.retire = told


def main(folder, cases):
    rank = int(os.environ.get("RANK", "0"))
    elastic.Server, elastic.server_memory = WatchedServer, told_memory
    for case in cases:
        name, _, how = case.partition("/")
        model, flow, intervals, kind = (*name.split(":"), "whole")[:4]
        if how.startswith("kill"):
            culprit, tasks = how.removeprefix("kill=").split("@")
            if rank == int(culprit):
                kill_after(int(tasks))
        if how == "late":
            open_late(folder, rank)
        place = folder / name.replace(":", "-")
        more = {"hidden": WIDE} if kind == "wide" else {"checkpoint_seconds": 0.0} if how not in ("", "late") else {}
        if flow.startswith("async"):
            more |= {"lead": int(flow.removeprefix("async"))}
        chosen = options(model, flow=flow.rstrip("012"), intervals=int(intervals), **more)
        result = node(data_of(kind, folder, rank), chosen, out=place, resume=how == "resume", watcher=Watcher())
        Path(f"{place}.{rank}.json").write_text(json.dumps(WatchedServer.last.facts()))
        if rank == 0:
            torch.save(result.model.state_dict(), f"{place}.pt")


if __name__ == "__main__":
    with join():
        main(Path(sys.argv[1]), sys.argv[2:])
