import pytest

import headrace as hr
from headrace.train import LinkOptions
from headrace.train.links.suited import chosen_words, suited_options


@pytest.fixture(scope="module")
def facts():
    return hr.load("facts")


def test_a_knowledge_graph_gets_what_such_graphs_are_trained_with(facts):
    options = suited_options(facts, {})
    assert (options.reciprocal, options.regularizer, options.regularization) == (True, "n3", 0.02)
    assert options.negatives == min(500, facts.num_nodes)
    assert options.epochs == 50  # few batches


def test_what_is_given_stays(facts):
    given = {"negatives": 7, "epochs": 3, "init": 0.5, "reciprocal": False, "regularizer": "l2", "regularization": 0.1}
    options = suited_options(facts, given)
    assert {name: getattr(options, name) for name in given} == given
    assert options.optimizer == "adagrad"
    assert suited_options(facts, {"regularizer": "none"}).regularization == 0


@pytest.mark.parametrize(
    "given",
    [
        {"decoder": "transe"},
        {"loss": "logistic"},
        {"storage": "host"},
        {"storage": "disk", "partitions": 4, "buffer": 2},
        {"encoder": "sage"},
        {"row_type": "bf16"},
        {"memory": "1GiB"},
    ],
)
def test_other_ways_of_training_keep_the_usual_options(facts, given):
    assert suited_options(facts, given) == LinkOptions(**given, epochs=50)


def test_plain_graphs_get_epochs_alone():
    small, large = (hr.generate.community(nodes=2000, edges=count, classes=2, features=2) for count in (600, 400_000))
    assert suited_options(small, {}) == LinkOptions(epochs=50)
    assert suited_options(large, {}) == LinkOptions(epochs=10)
    epochs = min(3000 * 10_000 // large.num_edges, 50)
    assert suited_options(large, {"batch_size": 10_000}) == LinkOptions(epochs=epochs, batch_size=10_000)


def test_the_choice_is_said_and_kept_with_the_run(facts, tmp_path):
    class Notes(hr.train.Watcher):
        said = ()

        def note(self, text):
            self.said = (*self.said, text)

    notes = Notes()
    hr.train.link(facts, {"dim": 8, "epochs": 1}, out=tmp_path / "run", watcher=notes)
    said = next(text for text in notes.said if text.startswith("chosen to suit"))
    assert "regularizer n3" in said
    assert "epochs" not in said
    assert hr.train.Run(tmp_path / "run").header["options"]["regularizer"] == "n3"
    resumed = hr.train.link(
        facts, LinkOptions(**hr.train.Run(tmp_path / "run").header["options"]), out=tmp_path / "run", resume=True
    )
    assert resumed.test
    quiet = Notes()
    hr.train.link(facts, LinkOptions(dim=8, epochs=1), watcher=quiet)
    assert not any(text.startswith("chosen to suit") for text in quiet.said)


def test_words_name_what_differs(facts):
    assert chosen_words(LinkOptions(), {}) == ""
    assert chosen_words(LinkOptions(epochs=20, init=0.1), {"init": 0.1}) == "epochs 20"
