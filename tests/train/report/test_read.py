import json
import math
import shutil

import pytest
from training_runs import metrics, write_link_repeats, write_options, write_own_run, write_repeats, write_run

from headrace.train.report import curves, figures
from headrace.train.report.read import read_run, read_runs
from headrace.train.report.timeline import timeline


def append(path, *lines, end="\n"):
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("".join((line if isinstance(line, str) else json.dumps(line)) + end for line in lines))


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run(write_run(tmp_path / "a", name="sage", epochs=8))
    row = figures.summary(run)
    assert (run.name, row["model"], row["parameters"]) == ("sage", "sage", 206895)
    assert row["epochs"] == [8]
    assert row["status"] == "finished"
    assert row["median_epoch"] == 80.2
    assert row["peak"] == 3.3e9
    accuracy, loss = row["measures"]
    assert (accuracy["name"], accuracy["better"], accuracy["format"]) == ("accuracy", "higher", ".2%")
    assert accuracy["possible"] == 0.951
    assert accuracy["val"]["mean"] == pytest.approx(max(e["val_accuracy"] for e in run.repeats[0].epochs), abs=1e-4)
    assert accuracy["test"]["mean"] == pytest.approx(accuracy["val"]["mean"] - 0.01, abs=1e-4)
    assert (loss["name"], loss["better"], loss["possible"], loss["test"]["mean"]) == ("loss", "lower", None, 0.575)
    assert row["notes"] == []


def test_times_stages_and_samples_are_means_over_the_epochs(tmp_path):
    path = write_run(tmp_path / "a", epochs=1)
    lines = metrics(2, speed=1.0)
    second = next(line for line in lines if line["kind"] == "epoch" and line["epoch"] == 1)
    second["time"] = {"forward": 10.1}
    second["sampled"] = {"nodes": [1024, 15000], "edges": [15500]}
    append(path, second)
    run = read_run(path)
    assert figures.time_parts(run)["forward"] == pytest.approx(20.1)
    assert figures.time_parts(run)["backward"] == pytest.approx(20.0)
    assert figures.sampled(run) == {"nodes": [1024, 14900, 104000, 305000], "edges": [15400, 146000, 484000]}
    consumer = figures.stages(run)[-1]
    assert (consumer["name"], consumer["busy"]) == ("consumer", pytest.approx(79.0 / 80.2, abs=1e-4))
    sample = figures.stages(run)[0]
    assert sample["held"] == pytest.approx(140.2 / (2 * 80.2), abs=1e-4)


def test_a_stage_never_spends_more_than_it_has(tmp_path):
    path = write_run(tmp_path / "a", epochs=0, end=None)
    stage = {"name": "sample", "threads": 1, "busy": 5.0, "starved": 3.0, "held": 4.0}
    append(path, {"kind": "epoch", "epoch": 0, "epoch_seconds": 10.0, "stages": [stage]})
    [read] = figures.stages(read_run(path))
    assert read["busy"] + read["starved"] + read["held"] == pytest.approx(1.0, abs=1e-4)


def test_a_half_written_line_leaves_the_rest(tmp_path):
    path = write_run(tmp_path / "a", epochs=3, end=None)
    append(path, '{"kind": "epoch", "epoch": 3, "lo', end="")
    row = figures.summary(read_run(path))
    assert row["epochs"] == [3]
    assert row["status"] == "still running or interrupted"
    assert row["notes"] == []
    assert row["measures"][0]["val"] is not None
    assert row["measures"][0]["test"] is None


def test_a_damaged_line_in_the_middle_is_counted(tmp_path):
    path = write_run(tmp_path / "a", epochs=3, end=None)
    append(path, '{"kind": "epo{"kind": "step"}', "[1, 2]", metrics(4)[-2])
    row = figures.summary(read_run(path))
    assert row["epochs"] == [4]
    assert row["notes"] == ["2 damaged lines or files left out"]


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    path = write_run(tmp_path / "a", epochs=6, end="interrupted")
    again = [line for line in metrics(5, seed=1, end=None) if line["epoch"] >= 3]
    append(path, *again[:3])  # three batches into epoch 3
    repeat = read_run(path).repeats[0]
    assert [e["epoch"] for e in repeat.epochs] == [1, 2, 3, 4]
    assert (repeat.steps[-1]["epoch"], repeat.steps[-1]["batch"]) == (4, 30)
    assert repeat.end is None
    append(path, *again[3:])
    repeat = read_run(path).repeats[0]
    assert [e["epoch"] for e in repeat.epochs] == [1, 2, 3, 4, 5]
    assert repeat.epochs[-1]["train_accuracy"] == again[-1]["train_accuracy"]


def test_options_alone_make_a_run(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    write_options(path, name="just begun")
    run = read_run(path)
    assert run.name == "just begun"
    assert figures.summary(run)["epochs"] == [0]
    assert figures.summary(run)["status"] == "still running or interrupted"
    assert timeline(run) is None
    assert figures.time_parts(run) == {}
    assert figures.stages(run) == []


def test_missing_keys_leave_a_gap_and_unknown_ones_are_ignored(tmp_path):
    path = write_run(tmp_path / "a", epochs=0, end=None)
    append(path, {"kind": "epoch", "epoch": 0}, {"kind": "epoch", "epoch": 1, "loss": 0.5, "color": "red"}, {"kind": "weather"})
    run = read_run(path)
    assert curves.curves(run) == [{"epoch": [1, 2], "loss": [None, 0.5]}]
    assert figures.summary(run)["median_epoch"] is None


def test_a_loss_that_is_not_finite_is_a_gap_and_a_note(tmp_path):
    path = write_run(tmp_path / "a", epochs=0, end=None)
    append(path, *({"kind": "epoch", "epoch": e, "loss": loss} for e, loss in enumerate([1.0, math.nan, math.inf])))
    run = read_run(path)
    assert curves.curves(run)[0]["loss"] == [1.0, None, None]
    assert figures.summary(run)["notes"] == ["the loss is not a finite number from epoch 2 on"]


def test_repeats_are_one_run_with_mean_and_deviation(tmp_path):
    run = read_run(write_repeats(tmp_path / "cora", 3))
    row = figures.summary(run)
    assert [repeat.label for repeat in run.repeats] == ["repeat 0", "repeat 1", "repeat 2"]
    assert row["epochs"] == [60, 67, 74]
    assert row["measures"][0]["test"] == {"mean": 0.815, "std": 0.005, "count": 3}
    assert row["seconds"] == 123.4
    assert row["status"] == "early stop"
    assert len(curves.curves(run)) == 3


def test_repeats_of_links_are_one_run_whose_measures_the_repeats_know(tmp_path):
    run = read_run(write_link_repeats(tmp_path / "links"))
    row = figures.summary(run)
    [mrr] = row["measures"]
    ended = [repeat.end["test_mrr"] for repeat in run.repeats]
    assert ended[0] < ended[1]
    assert mrr["test"]["mean"] == pytest.approx(sum(ended) / 2, abs=1e-4)
    assert mrr["test"]["count"] == mrr["val"]["count"] == 2
    assert [rank["name"] for rank in row["ranks"]] == ["full filtered", "full raw"]
    assert row["ranks"][0]["mrr"] == pytest.approx(sum(ended) / 2, abs=1e-4)
    assert all("val_mrr" in line and "val_hits10" in line for line in curves.curves(run))
    values = {"mean": 0.5, "std": 0.125, "values": [0.4, 0.6]}
    (tmp_path / "links" / "result.json").write_text(json.dumps({"repeats": {"test_mrr": values}, "seconds": 40.0}))
    row = figures.summary(read_run(tmp_path / "links"))
    assert row["measures"][0]["test"] == {"mean": 0.5, "std": 0.125, "count": 2}
    assert row["seconds"] == 40.0


@pytest.mark.parametrize("end", ["finished", None])
def test_a_measure_that_is_better_when_smaller_is_best_at_its_least(tmp_path, end):
    run = read_run(write_own_run(tmp_path / "a", end=end))
    row = figures.summary(run)
    assert row["best_epochs"] == [2]
    error, kept = row["measures"]
    assert (error["name"], error["better"], error["format"], error["possible"]) == ("error", "lower", ",.1f", 0.5)
    assert error["val"]["mean"] == 2.0
    assert (error["test"] or {}).get("mean") == (20.0 if end else None)
    assert (kept["better"], kept["val"]["mean"], kept["test"]) == ("higher", 0.5, None)  # that of the best epoch
    assert row["model"] == "Denoise"
    [line] = curves.curves(run)
    assert line["train_error"] == [3.75, 1.75, 2.25]
    assert line["val_kept"] == [0.25, 0.5, 0.4]
    assert figures.time_parts(run) == {"denoising": 0.75, "validate": 0.25}
    [load] = curves.loads(run)
    assert "seeds" in load
    assert not {"edges", "bytes"} & set(load)  # it has none


def test_measures_that_make_no_sense_are_left_out(tmp_path):
    path = write_own_run(tmp_path / "a")
    about = json.loads((path / "options.json").read_text())
    nonsense = [{"name": "a", "better": "redder"}, {"name": 3}, {"nom": "b"}, {"name": "c", "format": "%d"}, "d"]
    (path / "options.json").write_text(json.dumps(about | {"measures": [*nonsense, *about["measures"]]}))
    assert [measure.name for measure in read_run(path).measures] == ["error", "kept"]
    (path / "options.json").write_text(json.dumps(about | {"measures": nonsense}))
    assert figures.summary(read_run(path))["measures"] == []


def test_the_size_of_the_model_is_asked_of_the_repeats(tmp_path):
    path = write_repeats(tmp_path / "cora")
    about = json.loads((path / "options.json").read_text())
    (path / "options.json").write_text(json.dumps(about | {"parameters": None}))
    assert figures.summary(read_run(path))["parameters"] == 206895


def test_repeats_under_way_show_what_there_is(tmp_path):
    run = read_run(write_repeats(tmp_path / "cora", 3, done=False))
    row = figures.summary(run)
    ended = [repeat.end["test_accuracy"] for repeat in run.repeats[:2]]
    accuracy = row["measures"][0]
    assert accuracy["test"]["count"] == 2
    assert accuracy["test"]["mean"] == pytest.approx(sum(ended) / 2, abs=1e-4)
    assert accuracy["val"]["count"] == 3
    assert row["status"] == "still running or interrupted (2 of 3 repeats done)"
    shutil.rmtree(tmp_path / "cora" / "repeat-2")
    assert figures.status(read_run(tmp_path / "cora")) == "still running or interrupted (2 of 3 repeats done)"


def test_repeats_are_in_the_order_of_their_numbers(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    write_options(path, repeats=12)
    for number in range(12):
        (path / f"repeat-{number}").mkdir()
    assert [repeat.label for repeat in read_run(path).repeats] == [f"repeat {number}" for number in range(12)]


def test_something_else_than_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no run at .*nothing"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"is no run: it has no options\.json"):
        read_run(tmp_path)
    (tmp_path / "options.json").write_text('{"format": 2, "na')
    with pytest.raises(ValueError, match=r"options\.json is damaged"):
        read_run(tmp_path)
    (tmp_path / "options.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match="format 7"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="at least one run"):
        read_runs([])


def test_a_folder_of_runs_is_answered_with_the_runs_in_it(tmp_path):
    write_run(tmp_path / "first", epochs=1)
    with pytest.raises(ValueError, match=r"did you mean .*first\?"):
        read_run(tmp_path)


def test_runs_of_one_name_are_told_apart_and_one_run_is_shown_once(tmp_path):
    first, second = write_run(tmp_path / "a", epochs=1), write_run(tmp_path / "b", epochs=1)
    runs = read_runs([first, second, tmp_path / "b" / ".." / "a"])
    assert [run.name for run in runs] == [f"sage ({first})", f"sage ({second})"]


def test_a_long_line_keeps_its_ends_and_its_spikes():
    values = [1.0 / (1 + i) for i in range(100_000)]
    values[54_321] = 50.0
    values[60_000] = None
    kept = curves.keep([values], 1000)
    assert len(kept) <= 1000
    assert {0, 54_321, 99_999} <= set(kept)
    assert kept == sorted(kept)
    assert curves.keep([values[:1000]], 1000) == list(range(1000))


def test_batches_lie_around_the_point_of_their_epoch(tmp_path):
    run = read_run(write_run(tmp_path / "a", epochs=3, end=None))
    [line] = curves.batch_losses(run)
    assert line["epoch"][0] == pytest.approx(0.5 + 10 / 192, abs=1e-4)
    assert line["epoch"][-1] == pytest.approx(2.5 + 190 / 192, abs=1e-4)


def test_one_batch_per_epoch_says_nothing_more_than_the_epoch(tmp_path):
    assert curves.batch_losses(read_run(write_run(tmp_path / "a", full_batch=True))) == [{}]


def test_batches_of_very_many_epochs_are_left_out(tmp_path):
    assert curves.batch_losses(read_run(write_run(tmp_path / "a", epochs=101))) == [{}]


def test_the_timeline_is_the_end_of_the_trace(tmp_path):
    drawn = timeline(read_run(write_run(tmp_path / "a")))
    assert drawn["all"] == 300
    assert 100 < len(drawn["spans"]) <= 200
    assert drawn["threads"] == ["headrace-sample-0", "headrace-rows-0", "MainThread", "headrace-sample-1"]
    end = max(begin + length for _, _, begin, length, _, _ in drawn["spans"])
    assert 1900 < end < 2200
    assert drawn["spans"][-1][5] == "59"
    deeper = {drawn["names"][name] for _, depth, _, _, name, _ in drawn["spans"] if depth}
    assert deeper == {"forward", "backward"}


def test_a_half_written_trace_is_no_trace(tmp_path):
    path = write_run(tmp_path / "a")
    text = (path / "trace.json").read_text()
    (path / "trace.json").write_text(text[: len(text) // 2])
    run = read_run(path)
    assert timeline(run) is None
    assert figures.summary(run)["notes"] == ["1 damaged line or file left out"]


def test_classes_of_test_nodes_are_means_of_the_repeats_under_their_names(tmp_path):
    path = write_repeats(tmp_path / "a", 2, epochs=2)
    for repeat, f1 in ((0, 0.5), (1, 0.7)):
        table = [{"nodes": 30, "precision": 0.25, "recall": 0.75, "f1": f1}, {"nodes": 10, "f1": "many"}]
        append(path / f"repeat-{repeat}", {"kind": "end", "test": {"accuracy": 0.5, "classes": table}})
    about = json.loads((path / "options.json").read_text())
    about["dataset"]["class_names"] = ["first"]
    (path / "options.json").write_text(json.dumps(about))
    row, other = figures.classes(read_run(path))
    assert row == {"name": "first", "nodes": 30, "precision": 0.25, "recall": 0.75, "f1": 0.6}
    assert other == {"name": "1", "nodes": 10, "precision": None, "recall": None, "f1": None}
    assert figures.ranks(read_run(path)) == []
    assert figures.classes(read_run(write_run(tmp_path / "b"))) == []
