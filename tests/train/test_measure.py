import pytest

from headrace.train import Measure
from headrace.train.measure import is_better, split_scores

MEASURES = (Measure("accuracy", format=".2%"), Measure("loss", better="lower"))


def scores(accuracy: float, loss: float) -> dict[str, float]:
    return {"accuracy": accuracy, "loss": loss}


def test_the_first_measure_decides_and_of_equals_the_next():
    assert is_better(MEASURES, scores(0.5, 1.0), None)
    assert is_better(MEASURES, scores(0.6, 2.0), scores(0.5, 1.0))
    assert is_better(MEASURES, scores(0.5, 0.9), scores(0.5, 1.0))
    assert not is_better(MEASURES, scores(0.5, 1.0), scores(0.5, 1.0))
    assert not is_better(MEASURES, scores(0.4, 0.1), scores(0.5, 1.0))
    assert is_better(MEASURES[1:], scores(0.0, 0.1), scores(0.9, 1.0))


def test_a_measure_is_written_in_its_format():
    assert [m.shown(0.51239) for m in MEASURES] == ["51.24 %", "0.5124"]
    assert Measure(**MEASURES[0].plain()) == MEASURES[0]


@pytest.mark.parametrize(("wrong", "message"), [({"better": "larger"}, "higher"), ({"format": "nonsense"}, "format")])
def test_a_wrong_measure_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Measure("accuracy", **wrong)


def test_splits_become_named_scores_and_keep_what_else_they_say():
    line = split_scores(MEASURES, {"val": scores(0.5, 1.0), "test": {"accuracy": 0.25, "edges": 7}, "train": None})
    assert line == {
        "val_accuracy": 0.5,
        "val_loss": 1.0,
        "test_accuracy": 0.25,
        "test_loss": None,
        "train_accuracy": None,
        "train_loss": None,
        "test": {"accuracy": 0.25, "edges": 7},
    }
