"""Tables of any task, from its run directory alone."""

import io

import pytest
from rich.console import Console

from headrace.cli.shown.results import show_result
from headrace.train import Run

MEASURES = [{"name": "error", "better": "lower", "format": ",.1f"}, {"name": "kept", "better": "higher", "format": ".1%"}]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "[run]"  # brackets are no markup


def write(path, *, error: float, seed: int = 0) -> None:
    """A run of a task of one's own: no graph, no stages, a measure that is better when it is smaller."""
    dataset = {"spec": None, "name": "Denoise", "nodes": 0, "edges": 0, "best_possible": {"error": 0.5}}
    header = {"task": "Denoise", "dataset": dataset, "options": {"seed": seed}, "parameters": None, "measures": MEASURES}
    run = Run.create(path, header)
    for epoch in range(3):
        run.log(
            "epoch", epoch=epoch, epoch_seconds=1.0 + epoch, time={"denoising": 1.0, "validate": epoch}, memory={"peak": 1 << 20}
        )
    run.log(
        "end", reason="finished", seconds=6.0, best_epoch=2, val_error=error, test_error=2 * error, val_kept=0.5, test_kept=None
    )
    run.close()


def shown(place) -> str:
    console = Console(file=io.StringIO(), width=160)
    show_result(place, console)
    return " ".join(console.file.getvalue().replace("│", " ").split())


def test_a_task_of_ones_own_is_shown_with_its_measures(place):
    write(place, error=1000.0)
    text = shown(place)
    for words in (
        "test error 2,000.0 validation error 1,000.0 best possible error 0.5",
        "validation kept 50.0 %",
        "epoch 2.00 s (median of 3)",
        "where the time went denoising 50 %, validate 50 %",
        "peak memory 1 MiB",
        "in all 6.0 s",
        f"headrace report {place}",
    ):
        assert words in text, words
    assert "test kept" not in text  # it was not tested
    assert "negatives" not in text


def test_repeats_are_a_mean_and_a_spread(place):
    Run.create(place, {"task": "Denoise", "dataset": {}, "options": {}, "parameters": None})
    for number, error in enumerate((1.0, 2.0)):
        write(place / f"repeat-{number}", error=error, seed=number)
    text = shown(place)
    assert "test error 3.0 ± 1.4 over 2 runs" in text
    assert "validation kept 50.0 % ± 0.0 over 2 runs" in text
    assert "median of 6" in text
    assert "in all 12.0 s" in text
