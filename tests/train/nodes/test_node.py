import dataclasses
import statistics
import sys
import types

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.loader import Batch, NeighborLoader, WholeBatch
from headrace.train import Run, Watcher, infer, node
from headrace.train.nodes.node import make_model
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.nodes.score import class_weights, score
from training_cases import MODELS, assert_same_weights, ctrl_c_at, small


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=2000, edges=40_000, classes=4, features=16, seed=1, splits=(0.3, 0.2, 0.5))


class Seen(Watcher):
    """Remembers what it was told."""

    def __init__(self):
        self.steps, self.epochs, self.ends, self.headers = [], [], [], []

    def begin(self, header, **where):
        self.headers.append({**header, **where})

    def step(self, event, clock):
        self.steps.append(event)

    def epoch(self, facts):
        self.epochs.append(facts)

    def end(self, facts):
        self.ends.append(facts)


class Own(nn.Module):
    """A module of a user: takes a batch, has no `layers`."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = hr.nn.SAGEConv(features, 16), hr.nn.SAGEConv(16, classes)
        self.given: list[tuple[type, bool]] = []

    def forward(self, batch):
        self.given.append((type(batch), self.training))
        near, far = batch.blocks
        return self.second(torch.relu(self.first(batch.x, far)), near)


class OwnLayers(nn.Module):
    """A module of a user whose `layers`, bare convolutions, are the model."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([hr.nn.SAGEConv(features, 16), hr.nn.GCNConv(16, classes)])
        self.given: list[tuple[type, bool]] = []

    def forward(self, batch):
        self.given.append((type(batch), self.training))
        near, far = batch.blocks
        return self.layers[1](self.layers[0](batch.x, far), near)


# It learns


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("full_batch", [False, True], ids=["on samples", "on the whole graph"])
def test_every_kind_of_layer_learns(data, model, full_batch):
    length = {"epochs": 25, "lr": 0.05} if full_batch else {"epochs": 7, "lr": 0.02}
    options = small(model=model, full_batch=full_batch, dropout=0.2, **length)
    seen = Seen()
    result = node(data, options=options, watcher=seen)
    assert result.test_accuracy > 0.84
    assert result.test_accuracy <= data.info["best_accuracy"] + 0.02
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]
    assert len(seen.steps) == (25 if full_batch else 7 * 10)
    assert (seen.epochs[0]["sampled"] is None) == full_batch


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_every_optimizer_learns(data, optimizer):
    result = node(data, options=small(optimizer=optimizer, epochs=5, lr=0.1 if optimizer == "sgd" else 0.02, weight_decay=1e-4))
    assert result.test_accuracy > 0.8


@pytest.mark.parametrize("full_batch", [False, True])
def test_bf16_learns_and_keeps_its_weights_in_fp32(data, full_batch):
    changes = {"full_batch": full_batch, "epochs": 20 if full_batch else 5, "lr": 0.05 if full_batch else 0.02}
    exact, low = (node(data, options=small(precision=precision, **changes)) for precision in ("fp32", "bf16"))
    assert {p.dtype for p in low.model.parameters()} == {torch.float32}
    assert low.test_accuracy == pytest.approx(exact.test_accuracy, abs=0.03)
    assert not torch.equal(low.model.layers[0].conv.lin_l.weight, exact.model.layers[0].conv.lin_l.weight)


def test_several_labels_per_node_are_learnt(data, tmp_path):
    y = torch.stack([data.y % 2, data.y // 2, data.y == 3], dim=1).bool()
    several = hr.Dataset(data.graph, x=data.x, y=y, splits=data.splits)
    result = node(several, options=small(epochs=8, lr=0.02), out=tmp_path / "run")
    rows = infer(result.model, several, data.splits["test"])
    assert rows.shape == (len(data.splits["test"]), 3)
    predicted, true = (rows > 0).int(), y[data.splits["test"]].int()
    f1 = 2 * int((predicted & true).sum()) / int(predicted.sum() + true.sum())
    assert result.scores["test_micro_f1"] == pytest.approx(f1)
    assert f1 > 0.85
    with pytest.raises(AttributeError, match=r"have no accuracy: see scores\['test_micro_f1'\]"):
        result.test_accuracy  # noqa: B018
    end = list(Run(tmp_path / "run").metrics("end"))[-1]
    assert [row["nodes"] for row in end["test"]["classes"]] == true.sum(dim=0).tolist()
    assert end["test_macro_f1"] == pytest.approx(sum(row["f1"] for row in end["test"]["classes"]) / 3)
    assert Run(tmp_path / "run").header["dataset"]["multi_label"] is True


def test_balanced_classes_find_the_rare_one(data):
    rare = (data.y == 0) & (torch.arange(data.num_nodes) % 6 == 0)
    keep = rare | (data.y != 0)
    splits = {name: ids[keep[ids]] for name, ids in data.splits.items()}
    few = dataclasses.replace(data, y=(data.y != 0).long(), splits=splits, info={})
    options = small(epochs=3, lr=0.01, dropout=0.0)
    found = {}
    for weights in ("none", "balanced"):
        result = node(few, options=dataclasses.replace(options, class_weights=weights))
        test = splits["test"]
        found[weights] = int((infer(result.model, few, test[few.y[test] == 0]).argmax(dim=1) == 0).sum())
    assert found["balanced"] > found["none"] + 5


# Any module


def test_a_module_without_layers_is_validated_on_samples(data):
    own = Own(16, 4)
    result = node(data, model=own, options=small(epochs=6, lr=0.02))
    assert result.model is own
    assert result.test_accuracy > 0.8
    assert {kind for kind, _ in own.given} == {Batch}
    evaluated = [training for _, training in own.given].count(False)
    assert evaluated == 6 * -(-400 // 64) + -(-2000 // 64)
    rows = torch.cat([own(batch) for batch in NeighborLoader(data, [5, 5], "val", batch_size=64)])
    assert result.val_accuracy == pytest.approx(score(rows, data.y[data.splits["val"]])["accuracy"], abs=0.05)


def test_a_module_with_layers_is_validated_exactly(data):
    own = OwnLayers(16, 4)
    result = node(data, model=own, options=small(epochs=6, lr=0.02))
    assert set(own.given) == {(Batch, True)}  # validation calls the layers one by one
    for name in ("val", "test"):
        ids = data.splits[name]
        accuracy = float((infer(own, data)[ids].argmax(dim=1) == data.y[ids]).float().mean())
        assert getattr(result, f"{name}_accuracy") == pytest.approx(accuracy)


def test_a_module_whose_layers_are_a_number_is_validated_on_samples(data):
    own = Own(16, 4)
    own.layers = 2
    node(data, model=own, options=small(epochs=1))
    assert (Batch, False) in own.given


def test_a_module_is_given_the_whole_graph_as_a_batch(data):
    own = Own(16, 4)
    node(data, model=own, options=small(epochs=3, full_batch=True))
    assert set(own.given) == {(WholeBatch, True), (WholeBatch, False)}


@pytest.mark.parametrize(("validate", "forwards"), [("auto", False), ("exact", False), ("none", False), ("sampled", True)])
def test_how_to_validate_can_be_chosen(data, validate, forwards):
    own, seen = OwnLayers(16, 4), Seen()
    node(data, model=own, options=small(epochs=2, validate=validate), watcher=seen)
    assert ((Batch, False) in own.given) == forwards
    assert (seen.epochs[0]["val_accuracy"] is None) == (validate == "none")
    assert seen.ends[0]["test_accuracy"] is not None


def test_exact_validation_of_a_module_without_layers_is_refused_before_training(data):
    own = Own(16, 4)
    with pytest.raises(ValueError, match="validate exact needs a model with layers, and Own has none"):
        node(data, model=own, options=small(validate="exact"))
    assert own.given == []


def test_a_function_makes_a_model_for_each_repeat(data):
    made = []

    def make():
        made.append(OwnLayers(16, 4))
        return made[-1]

    result = node(data, model=make, options=small(epochs=2, repeats=3))
    assert len(made) == 3
    assert result.model is made[-1]
    assert len(result.test_accuracy.values) == 3
    first, second, third = (m.layers[0].lin_l.weight for m in made)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_one_module_cannot_be_trained_repeatedly(data):
    with pytest.raises(ValueError, match="repeats need a model each: pass a function"):
        node(data, model=Own(16, 4), options=small(repeats=2))


def test_a_module_without_parameters_is_refused(data):
    with pytest.raises(ValueError, match="the model has no parameters to train"):
        node(data, model=nn.Identity(), options=small())


def test_batch_norm_survives_a_last_batch_of_one_node(data):
    one_left = dataclasses.replace(data, splits={**data.splits, "train": data.splits["train"][:129]})
    seen = Seen()
    node(one_left, options=small(model="gin", epochs=2), watcher=seen)
    assert [event.seeds for event in seen.steps] == [64, 64] * 2
    node(one_left, options=small(model="sage", epochs=1), watcher=(seen := Seen()))
    assert [event.seeds for event in seen.steps] == [64, 64, 1]


@pytest.mark.parametrize("inner_norm", ["layer", "none"])
def test_gin_trains_without_batch_norms(data, inner_norm):
    result = node(data, options=small(model="gin", inner_norm=inner_norm, epochs=3), watcher=(seen := Seen()))
    assert not any(isinstance(module, nn.BatchNorm1d) for module in result.model.modules())
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]


# Repeats and seeds


def test_repeats_have_seeds_of_their_own_and_a_mean_and_deviation(data, tmp_path):
    result = node(data, options=small(epochs=2, repeats=3, seed=5), out=tmp_path / "run")
    alone = [node(data, options=small(epochs=2, seed=5 + i)).test_accuracy for i in range(3)]
    assert result.test_accuracy.values == tuple(alone)
    assert len(set(alone)) > 1
    summary = result.summary()["test_accuracy"]
    assert summary["values"] == alone
    assert summary["mean"] == pytest.approx(statistics.fmean(alone))
    assert summary["std"] == pytest.approx(statistics.stdev(alone))
    assert Run(tmp_path / "run").result() == result.summary()
    for i in range(3):
        assert Run(tmp_path / "run" / f"repeat-{i}").header["options"]["seed"] == 5 + i
    assert result.seconds == pytest.approx(
        sum(Run(tmp_path / "run" / f"repeat-{i}").metrics("end")[0]["seconds"] for i in range(3))
    )


def test_one_run_has_no_deviation(data):
    result = node(data, options=small(epochs=1))
    assert result.summary()["test_accuracy"] == {"mean": result.test_accuracy, "std": 0.0, "values": [result.test_accuracy]}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("full_batch", [False, True])
def test_the_same_seed_gives_the_same_bits(data, model, full_batch):
    options = small(model=model, full_batch=full_batch, epochs=2)
    first, again, staler, other = (
        node(data, options=dataclasses.replace(options, **changes))
        for changes in ({"staleness": 0}, {"staleness": 0}, {"staleness": 3}, {"seed": 1})
    )
    for same in (again, staler):
        assert_same_weights(same.model.state_dict(), first.model.state_dict())
        assert (same.test_accuracy, same.val_accuracy) == (first.test_accuracy, first.val_accuracy)
    weights = first.model.state_dict()
    assert any(not torch.equal(weights[name], value) for name, value in other.model.state_dict().items())


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_do_not_depend_on_threads(data, threads):
    recipe = NodeRecipe(data, make_model(data, small()), small(threads=threads))
    plain = NodeRecipe(data, make_model(data, small()), small(threads=1, staleness=0))
    for epoch in (0, 3):
        for first in (0, 4, 10):
            found, wanted = ([b.n_id.tolist() for b in r.batches(epoch, first)] for r in (recipe, plain))
            assert found == wanted
            assert len(found) == 10 - first
    assert [b.n_id.tolist() for b in plain.batches(0, 0)] != [b.n_id.tolist() for b in plain.batches(3, 0)]


def test_training_leaves_torch_its_threads(data):
    before = torch.get_num_threads()
    node(data, options=small(threads=before + 1, epochs=1))
    assert torch.get_num_threads() == before


# The end


def test_early_stopping_stops_and_restores_the_best_weights(data, tmp_path):
    seen = Seen()
    result = node(data, options=small(epochs=60, lr=0.05, patience=3), out=tmp_path / "run", watcher=seen)
    accuracies = [(e["val_accuracy"], -e["val_loss"]) for e in seen.epochs]
    best = max(range(len(accuracies)), key=lambda i: accuracies[i])
    assert len(seen.epochs) == best + 1 + 3 < 60
    (end,) = seen.ends
    assert (end["reason"], end["best_epoch"]) == ("early stop", best)
    assert result.val_accuracy == accuracies[best][0]
    ids = data.splits["val"]
    loss = score(infer(result.model, data, ids), data.y[ids])
    assert (loss["accuracy"], loss["loss"]) == pytest.approx((accuracies[best][0], -accuracies[best][1]))
    run = Run(tmp_path / "run")
    assert_same_weights(run.load_checkpoint("best")["model"], result.model.state_dict())
    assert run.metrics("end")[0]["reason"] == "early stop"


def test_without_patience_all_epochs_are_run_and_the_best_kept(data):
    seen = Seen()
    result = node(data, options=small(epochs=8, lr=0.1), watcher=seen)
    assert len(seen.epochs) == 8
    assert result.val_accuracy == max(e["val_accuracy"] for e in seen.epochs)
    assert seen.ends[0]["reason"] == "finished"


def test_validation_may_be_rarer_but_always_comes_last(data):
    seen = Seen()
    node(data, options=small(epochs=5, validate_every=2), watcher=seen)
    assert [e["val_accuracy"] is not None for e in seen.epochs] == [False, True, False, True, True]


def test_without_validation_nodes_the_last_weights_are_kept(data):
    only = dataclasses.replace(data, splits={"train": data.splits["train"], "test": data.splits["test"]})
    seen = Seen()
    result = node(only, options=small(epochs=2, patience=1), watcher=seen)
    assert (result.val_accuracy, len(result.test_accuracy.values), len(seen.epochs)) == (None, 1, 2)
    assert "val_accuracy" not in result.summary()
    assert seen.ends[0]["best_epoch"] == 1


def test_without_test_nodes_there_is_no_test_accuracy(data):
    only = dataclasses.replace(data, splits={"train": data.splits["train"], "val": data.splits["val"]})
    assert node(only, options=small(epochs=1)).test_accuracy is None


def test_the_model_is_left_as_for_evaluation(data, tmp_path):
    for options in (small(epochs=1), small(epochs=1, full_batch=True), small(epochs=1, validate="sampled")):
        assert not node(data, options=options).model.training
    node(data, options=small(epochs=1), out=tmp_path / "run")
    assert not node(data, options=small(epochs=1), out=tmp_path / "run", resume=True).model.training


def test_weights_that_are_lost_are_an_error_even_in_the_last_step(data, tmp_path):
    for splits in (data.splits, {"train": data.splits["train"]}):
        own = OwnLayers(16, 4)
        own.layers[0].lin_l.weight.register_hook(lambda grad: grad * float("nan"))
        with pytest.raises(FloatingPointError, match=r"weights .* are no longer finite at epoch 0, batch 1"):
            node(dataclasses.replace(data, splits=splits), model=own, options=small(epochs=1, full_batch=True))


# What is done in a step


def test_the_gradient_is_cut_at_its_largest_norm(data):
    options = small(epochs=1, full_batch=True, optimizer="sgd", lr=0.5, clip=1e-3, validate="none")
    torch.manual_seed(options.seed)
    before = make_model(data, options).state_dict()
    after = node(data, options=options).model.state_dict()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
    assert float(moved) == pytest.approx(0.5 * 1e-3, rel=1e-3)
    free = node(data, options=dataclasses.replace(options, clip=0.0)).model.state_dict()
    assert float(torch.cat([(free[name] - before[name]).flatten() for name in before]).norm()) > 10 * float(moved)


def test_the_learning_rate_of_every_step_follows_the_schedule(data, monkeypatch):
    from headrace.train.steps.optimize import learning_rate

    rates = []
    step = torch.optim.Adam.step

    def remember(self, *arguments):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", remember)
    options = small(epochs=3, schedule="cosine", warmup=0.5)
    node(data, options=options)
    assert rates == [learning_rate(options, i, 10) for i in range(30)]
    assert len(set(rates)) > 20


def test_a_step_tells_what_it_took(data):
    seen = Seen()
    node(data, options=small(epochs=1), watcher=seen)
    recipe = NodeRecipe(data, make_model(data, small()), small())
    for event, batch in zip(seen.steps, recipe.batches(0, 0), strict=True):
        assert (event.seeds, event.nodes, event.edges) == (batch.batch_size, len(batch.n_id), batch.sample.num_edges)
        assert event.bytes > 0
    assert [e.step for e in seen.steps] == [e.batch for e in seen.steps] == list(range(1, 11))
    (line,) = seen.epochs
    assert line["train_accuracy"] == pytest.approx(sum(e.measures["accuracy"] * e.seeds for e in seen.steps) / 600)
    assert line["loss"] == pytest.approx(sum(e.loss * e.seeds for e in seen.steps) / 600)
    assert line["sampled"]["nodes"][0] == 60
    assert sum(line["sampled"]["edges"]) == pytest.approx(sum(e.edges for e in seen.steps) / 10)


def test_the_parts_of_an_epoch_make_up_its_time(data):
    seen = Seen()
    node(data, options=small(epochs=2), watcher=seen)
    for line in seen.epochs:
        assert set(line["time"]) == {"wait", "forward", "backward", "step", "validate", "other"}
        assert sum(line["time"].values()) == pytest.approx(line["epoch_seconds"], rel=0.02)
        assert [stage["name"] for stage in line["stages"]] == ["sample", "consumer"]
        assert line["throughput"]["seeds"] > 0
        assert line["memory"]["peak"] >= line["memory"]["resident"] > line["memory"]["data"] > 0


def test_the_run_directory_holds_everything(data, tmp_path):
    place = tmp_path / "deep" / "run"
    result = node(data, options=small(epochs=2, log_every=4), out=place, spec="some:data")
    assert {file.name for file in place.iterdir()} == {"options.json", "metrics.jsonl", "trace.json", "result.json", "checkpoints"}
    run = Run(place)
    assert (
        run.header["dataset"] | {"spec": "some:data", "nodes": 2000, "edges": 40_000, "features": 16, "classes": 4}
        == run.header["dataset"]
    )
    assert run.header["parameters"] == sum(p.numel() for p in result.model.parameters())
    assert [line["step"] for line in run.metrics("step")] == [4, 8, 12, 16, 20]
    assert [line["kind"] for line in run.metrics()] == ["step"] * 2 + ["epoch"] + ["step"] * 3 + ["epoch", "end"]
    assert run.result() == result.summary()


def test_without_a_directory_nothing_is_written(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert node(data, options=small(epochs=1)).run is None
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_is_told_of_steps_and_epochs_and_closed(data, tmp_path, monkeypatch):
    made = []

    class Writer:
        def __init__(self, folder):
            self.folder, self.scalars, self.closed = folder, {}, False
            made.append(self)

        def add_scalar(self, name, value, at):
            self.scalars.setdefault(name, []).append((at, value))

        def close(self):
            self.closed = True

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    seen = Seen()
    node(data, options=small(epochs=2, log_every=5, tensorboard=True), out=tmp_path / "run", watcher=seen)
    (writer,) = made
    assert writer.folder == str(tmp_path / "run" / "tensorboard")
    assert writer.closed
    assert writer.scalars["train/loss"] == [(e.step, e.loss) for e in seen.steps if e.step % 5 == 0]
    assert writer.scalars["epoch/val_accuracy"] == [(e["epoch"], e["val_accuracy"]) for e in seen.epochs]
    with pytest.raises(KeyboardInterrupt):
        node(data, options=small(tensorboard=True), out=tmp_path / "stopped", watcher=ctrl_c_at("step", 1))
    assert made[-1].closed


def test_tensorboard_that_is_not_installed_is_told_before_anything_is_written(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install headrace\[tensorboard\]"):
        node(data, options=small(tensorboard=True), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Features


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_features_that_the_layers_cannot_multiply_are_refused(data, dtype):
    with pytest.raises(ValueError, match=rf"features are {dtype}, .*convert x with \.float\(\)"):
        node(dataclasses.replace(data, x=data.x.to(dtype)), options=small())


# Scores


def test_class_weights_make_classes_count_the_same():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    weights = class_weights(labels, 4)
    assert weights.tolist() == pytest.approx([6 / 12, 6 / 4, 6 / 8, 0])
    total = torch.zeros(4).index_add_(0, labels, weights[labels])
    assert total.tolist() == pytest.approx([1.5, 1.5, 1.5, 0])
    several = class_weights(torch.tensor([[1, 0], [0, 1], [0, 0], [1, 0]]), 2)
    assert several.tolist() == pytest.approx([1.0, 3.0])  # zeros per one


# Options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 0, not -1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"input_dropout": -0.1}, "input_dropout must be from 0 to below 1"),
        ({"model": "mlp"}, "model must be one of sage, gcn, gin, gat, gatv2, not 'mlp'"),
        ({"optimizer": "lion"}, "optimizer must be one of adam, adamw, sgd"),
        ({"schedule": "step"}, "schedule must be one of constant, cosine, linear"),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16"),
        ({"norm": "graph"}, "norm must be one of none, batch, layer"),
        ({"model": "gin", "inner_norm": "graph"}, "inner_norm must be one of none, batch, layer"),
        ({"model": "gcn", "inner_norm": "none"}, "inner_norm is the norm inside the network of gin, and gcn has none"),
        ({"validate": "never"}, "validate must be one of auto, exact, sampled, none"),
        ({"features": "columns"}, "features must be one of as_is, rows, standardize"),
        ({"class_weights": "x"}, "class_weights must be one of none, balanced"),
        ({"fanout": (5, -2)}, "fanout must be numbers from -1"),
        ({"fanout": (5, 5), "layers": 3}, "fanout has 2 hops for 3 layers"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"staleness": -1}, "staleness must be at least 0"),
        ({"patience": -2}, "patience must be at least -1"),
        ({"device": "tpu"}, "device must be cpu or cuda .*, not 'tpu'"),
    ],
)
def test_options_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        NodeOptions(**changes)


@pytest.mark.parametrize(
    ("given", "depth", "fanouts"),
    [
        ({}, 3, (15, 10, 5)),
        ({"full_batch": True}, 2, (15, 10)),
        ({"layers": 2}, 2, (15, 10)),
        ({"layers": 5}, 5, (15, 10, 5, 5, 5)),
        ({"fanout": (7, 3)}, 2, (7, 3)),
        ({"fanout": (-1,)}, 1, (-1,)),
    ],
)
def test_layers_and_fanout_follow_from_each_other(given, depth, fanouts):
    options = NodeOptions(**given)
    assert (options.depth, options.fanouts) == (depth, fanouts)


def test_features_in_bf16_train_in_bf16_and_are_refused_in_fp32():
    data = hr.generate.community(nodes=1_000, edges=20_000, classes=3, features=16, splits=(0.5, 0.2, 0.3))
    data.x = data.x.bfloat16()
    options = hr.train.NodeOptions(hidden=32, fanout=(5, 5), epochs=10, batch_size=50, lr=0.01, precision="bf16")
    assert hr.train.node(data, options=options).test_accuracy > 0.7
    with pytest.raises(ValueError, match=r"features are torch\.bfloat16, and the model computes with fp32"):
        hr.train.node(data, options=dataclasses.replace(options, precision="fp32"))


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_outputs_that_overflow_are_an_error_not_an_accuracy(model):
    data = hr.generate.community(nodes=200, edges=1600, classes=3, features=8)
    # One step: the weights it ends with are huge but finite, and what they make of the nodes is not.
    options = small(model=model, epochs=1, batch_size=1000, optimizer="sgd", lr=1e30)
    with pytest.raises(FloatingPointError, match="not finite"):
        node(data, options=options)
