import io
import random
import re
import sys
import threading

import pytest
from rich.console import Console

from headrace.cli.shown.live import LiveView, sparkline
from headrace.train import StepEvent
from headrace.train.watching.lines import Lines

HEADER = {
    "task": "node",
    "dataset": {
        "spec": "generate:products?scale=0.05",
        "name": None,
        "nodes": 122_451,
        "edges": 6_185_914,
        "best_possible": {"accuracy": 0.951},
    },
    "options": {"model": "sage", "seed": 3},
    "parameters": 206_895,
    "measures": [
        {"name": "accuracy", "better": "higher", "format": ".2%"},
        {"name": "loss", "better": "lower", "format": ".4f"},
    ],
}
OWN = {  # a task of one's own, with no graph
    "task": "Denoise",
    "dataset": {"spec": None, "name": "Denoise", "nodes": 0, "edges": 0, "best_possible": {"error": 0.5}},
    "options": {"seed": 3},
    "parameters": None,
    "measures": [{"name": "error", "better": "lower", "format": ",.1f"}, {"name": "kept [%]", "better": "higher", "format": ".1%"}],
}
WHERE = {"epochs": 10, "batches": 192, "epoch": 0, "batch": 0}
CLOCK = {"wait": 0.5, "gather": 1.0, "forward": 4.0, "backward": 3.5, "step": 0.5, "validate": 0.5}
EPOCH = {
    "epoch": 0,
    "epoch_seconds": 9.5,
    "loss": 1.25,
    "train_accuracy": 0.5,
    "val_accuracy": 0.625,
    "val_loss": 1.5,
    "stages": [
        {"name": "sample", "threads": 2, "items": 192, "busy": 3.0, "starved": 0.0, "held": 1.0},
        {"name": "consumer", "threads": 1, "items": 192, "busy": 9.0, "starved": 1.0, "held": 0.0},
    ],
    "memory": {"resident": 3 << 30, "peak": 4 << 30, "data": 1 << 30, "buffers": 1 << 29, "buffers_peak": 1 << 29},
}


def step(number: int, loss: float = 1.0, **more) -> StepEvent:
    values = {"epoch": 0, "batch": number, "step": number, "seconds": 0.1 * number, "loss": loss, "seeds": 1024}
    return StepEvent(**{**values, "measures": {"accuracy": 0.75}, "nodes": 400_000, "edges": 600_000, "bytes": 1 << 28, **more})


@pytest.fixture
def screen():
    """A terminal, as far as rich can tell."""
    file = io.StringIO()
    console = Console(force_terminal=True, file=file, width=100, height=40, color_system="truecolor")
    view = LiveView(console)
    yield view
    view.close()


def drawn(view: LiveView) -> str:
    """What the view shows now, without colors."""
    console = Console(file=io.StringIO(), width=100, height=40)
    console.print(view._view())
    return console.file.getvalue()


def test_the_view_shows_loss_accuracy_throughput_stages_and_memory(screen):
    screen.begin(HEADER, **WHERE)
    for number in range(1, 60):
        screen.step(step(number, loss=4.0 / number), CLOCK)
    screen.epoch(EPOCH)
    text = drawn(screen)
    for shown in (
        "sage · 206,895 parameters · generate:products?scale=0.05: 122,451 nodes",
        "epochs",
        "1/10",
        "59/192",
        f"{4.0 / 59:.4f}",
        "train 75.00 %",
        "val 62.50 % (best 62.50 %)",
        "val 1.5000 (best 1.5000)",
        "best possible 95.10 %",
        "seeds/s",
        "M sampled edges/s",
        "GB/s of features",
        "GiB resident",
        "data 1.00, batch buffers 0.50",
        "forward 40 %",
        "wait 5 %",
        "busy 75 %, waits for input 0 %, held back 25 %",
        "training",
        "busy 90 %, waits for input 10 %, held back 0 %",
        "█",
        "▁",
    ):
        assert shown in text, shown
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_view_can_be_drawn_at_any_moment(screen):
    assert drawn(screen)
    screen.begin(HEADER, **{**WHERE, "epoch": 4, "batch": 7})
    assert "4/10" in drawn(screen)
    assert "7/192" in drawn(screen)
    screen.step(step(8), {})
    assert "..." in drawn(screen)  # one step has no speed yet
    screen.validating(30, 100)
    assert "validate" in drawn(screen)
    assert "30/100" in drawn(screen)
    screen.step(step(9, edges=0, bytes=0), CLOCK)  # a whole graph draws no edges
    assert "30/100" not in drawn(screen)
    assert "sampled edges" not in drawn(screen)
    screen.epoch({**EPOCH, "val_accuracy": None, "val_loss": None, "stages": [], "memory": {"data": 1}})
    assert "val " not in drawn(screen)
    screen.begin(HEADER, **WHERE)  # the next repeat
    assert "0/10" in drawn(screen)


def test_a_task_of_ones_own_is_shown_with_its_measures_and_parts(screen):
    screen.begin(OWN, **WHERE)
    for number, error in enumerate((4000.0, 1000.0), start=1):
        screen.step(step(number, measures={"error": error}, edges=0, bytes=0), {"denoising": 3.0, "validate": 1.0})
    facts = {"epoch_seconds": 1.0, "loss": 1.0, "stages": [], "memory": {}}
    for epoch, (error, kept) in enumerate([(4000.0, 0.25), (1000.0, 0.5), (2000.0, 0.375)]):
        screen.epoch({**facts, "epoch": epoch, "val_error": error, "val_kept [%]": kept})
    text = drawn(screen)
    assert "Denoise · seed 3" in text  # no sizes, and its name once
    assert "train 2,500.0   val 2,000.0 (best 1,000.0)   best possible 0.5" in text  # the least is the best
    assert re.search(r"kept \[%\] +val 37.5 % \(best 50.0 %\)", text)
    assert "validate 25 %   denoising 75 %" in text
    assert "sampled edges" not in text


def test_the_terminal_is_given_back(screen):
    screen.begin(HEADER, **WHERE)
    screen.step(step(1), CLOCK)
    screen.close()
    screen.close()
    text = screen.console.file.getvalue()
    assert "sage" in text
    assert "\x1b[?25l" in text  # the cursor is hidden,
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # and comes back
    assert screen.live is None


def test_a_note_is_printed_as_it_is(screen):
    screen.begin(HEADER, **WHERE)
    screen.note("written to [/runs]")
    assert "written to [/runs]" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.console.file.getvalue())


def test_a_name_with_brackets_is_shown_as_it_is(screen):
    screen.begin({**HEADER, "dataset": {**HEADER["dataset"], "spec": "data/[/old] [red]"}}, **WHERE)
    assert "data/[/old] [red]" in drawn(screen)


def test_the_view_is_drawn_while_training_goes_on(screen):
    """Another thread draws: it must bear that events arrive meanwhile."""
    screen.begin(HEADER, **WHERE)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    done = threading.Event()

    def train():
        number = 0
        while not done.is_set():
            number += 1
            screen.step(step(number), CLOCK)
            if number % 50 == 0:
                screen.epoch(EPOCH)
                screen.epochs.clear()
                screen.epochs.append(EPOCH)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(300):
            screen._figures()
            screen._waits()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_sparkline_goes_from_its_smallest_value_to_its_largest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0]) == "█▁"
    assert sparkline([5.0]) == "▁"
    assert sparkline([2.0, 2.0, 2.0]) == "▁▁▁"


def test_a_sparkline_of_many_values_shows_means():
    assert sparkline([0, 0, 10, 10, 5, 5], width=3) == "▁█▅"
    draw = random.Random(0)
    for count in range(1, 400, 7):
        line = sparkline([draw.random() for _ in range(count)], width=40)
        assert len(line) == min(count, 40)
        assert set(line) <= set("▁▂▃▄▅▆▇█")
    falling = sparkline([1.0 / (i + 1) for i in range(400)], width=40)
    assert falling[0] == "█"
    assert list(falling) == sorted(falling, reverse=True)


# Plain lines, where there is no terminal


def test_lines_tell_the_beginning_each_long_epoch_and_the_end(capsys):
    lines = Lines()
    lines.begin(HEADER, **{**WHERE, "epochs": 3, "epoch": 1, "batch": 7})
    lines.epoch({**EPOCH, "epoch": 1})
    lines.epoch({**EPOCH, "epoch": 2, "val_accuracy": None})
    lines.note("something")
    lines.end({"reason": "finished", "seconds": 12.25, "test_accuracy": 0.875, "best_epoch": 1})
    lines.end({"reason": "early stop", "seconds": 1.0, "test_accuracy": None, "best_epoch": 0})
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines() == [
        "sage with 206,895 parameters on 122,451 nodes, 6,185,914 edges: "
        "3 epochs of 192 batches, seed 3, going on at epoch 2, batch 8",
        "epoch 2/3 loss 1.2500 train accuracy 50.00 % val accuracy 62.50 % in 9.50 s",
        "epoch 3/3 loss 1.2500 train accuracy 50.00 % in 9.50 s",
        "something",
        "finished after 12.2 s, test accuracy 87.50 % (best epoch 2)",
        "early stop after 1.0 s (best epoch 1)",
    ]


def test_lines_of_a_task_of_ones_own_tell_the_measure_that_decides(capsys):
    lines = Lines()
    lines.begin(OWN, **WHERE)
    lines.epoch({"epoch": 9, "epoch_seconds": 2.0, "loss": 1.0, "val_error": 1234.5, "val_kept [%]": 0.5})
    lines.end({"reason": "finished", "seconds": 2.5, "test_error": 20.0, "best_epoch": 9})
    assert capsys.readouterr().err.splitlines() == [
        "Denoise: 10 epochs of 192 batches, seed 3",
        "epoch 10/10 loss 1.0000 val error 1,234.5 in 2.00 s",
        "finished after 2.5 s, test error 20.0 (best epoch 10)",
    ]
    lines.begin({**OWN, "measures": []}, **WHERE)
    lines.epoch({"epoch": 9, "epoch_seconds": 2.0, "loss": 1.0})
    lines.end({"reason": "finished", "seconds": 2.5, "best_epoch": 9})
    assert capsys.readouterr().err.splitlines()[1:] == [
        "epoch 10/10 loss 1.0000 in 2.00 s",
        "finished after 2.5 s (best epoch 10)",
    ]


def test_short_epochs_have_a_line_a_second_and_the_last_always(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("headrace.train.watching.lines.time.monotonic", lambda: now[0])
    lines = Lines()
    lines.begin(HEADER, **{**WHERE, "epochs": 100})
    for epoch in range(100):
        now[0] += 0.0625
        lines.epoch({**EPOCH, "epoch": epoch, "epoch_seconds": 0.0625})
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said[1:]] == ["16/100", "32/100", "48/100", "64/100", "80/100", "96/100", "100/100"]


def test_a_long_epoch_has_lines_within(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("headrace.train.watching.lines.time.monotonic", lambda: now[0])
    lines = Lines()
    lines.begin(HEADER, **WHERE)
    for number in range(1, 50):
        now[0] += 1
        lines.step(step(number), CLOCK)
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "epoch 1/10 batch 11/192 loss 1.0000 accuracy 75.00 %"
    assert len(said) == 1 + 4
    for done in range(30):
        now[0] += 1
        lines.validating(1000 * done, 30_000)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"evaluated {thousands},000 of 30,000" for thousands in (5, 16, 27)]
