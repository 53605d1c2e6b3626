"""Training over slow links, four ranks in network namespaces: who wins, how long a step takes, and what leaves the interface."""

from dataclasses import replace

import pytest

from headrace.bench.nodes.cluster import ClusterSetting, community, formula, prepared
from namespaces import namespaces

RANKS, STEPS, GIGABIT = 4, 8, 1e9
WIDE, NARROW = (768, 64), (100, 256)  # columns of features, and width of the hidden layer: push-pull wins, and loses
OURS = ("data", "push_pull")


def job_of(folder, features, hidden, *, scale=1.0, ranks=RANKS, steps=STEPS, repeats=3, systems=OURS):
    """A job, and its data."""
    setting = ClusterSetting(ranks=ranks, batches=steps, repeats=repeats)
    return prepared(folder, community(features, scale=scale), hidden, setting, systems)


def ran(job, rate):
    with namespaces(job.ranks, rate=rate) as network:
        return job.run(network)


def check_link(measured):
    """What left the interface, headers and all, is at most 3 % more than what was counted."""
    for figures in measured.systems.values():
        assert figures.counted <= figures.on_link <= 1.03 * figures.counted


@pytest.mark.slow
def test_bytes_on_the_link_are_those_counted_and_push_pull_sends_no_features(tmp_path):
    sent = {}
    for features in (100, 768):
        (folder := tmp_path / str(features)).mkdir()
        job, _ = job_of(folder, features, 64, scale=0.05, ranks=2, steps=4, repeats=1)
        check_link(measured := ran(job, GIGABIT))
        sent[features] = measured.systems["push_pull"].sent
    assert sent[100] == sent[768]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of both cases: the job, its data, and what it measured at 1 Gbit/s and without a limit."""
    results = {}
    for case in (WIDE, NARROW):
        job, data = job_of(tmp_path_factory.mktemp("job"), *case)
        results[case] = job, data, ran(job, GIGABIT), ran(job, 0.0)
    return results


@pytest.mark.slow
@pytest.mark.parametrize(("case", "winner", "times"), [(WIDE, "push_pull", 4.0), (NARROW, "data", 1.6)])
def test_the_one_that_sends_fewer_bytes_wins(runs, case, winner, times):
    job, data, slow, _ = runs[case]
    (loser,) = set(OURS) - {winner}
    assert formula(data, job.options(winner)) < formula(data, job.options(loser))
    assert slow.systems[loser].step >= times * slow.systems[winner].step, slow


@pytest.mark.slow
@pytest.mark.parametrize("case", [WIDE, NARROW])
def test_bytes_on_four_links_are_those_counted(runs, case):
    _, _, slow, free = runs[case]
    check_link(slow)
    check_link(free)


def predicted(system, communication, work):
    """Seconds of a step. Push-pull waits for its bytes. Rows are fetched while the batch before is computed: two stages of a
    pipeline, of which an epoch's first fetch is not hidden."""
    if system == "push_pull":
        return communication + work
    return max(communication, work) + min(communication, work) / STEPS


@pytest.mark.slow
@pytest.mark.parametrize("system", OURS)
@pytest.mark.parametrize("case", [WIDE, NARROW])
def test_a_step_takes_as_long_as_its_bytes_and_its_work(runs, case, system):
    job, data, slow, free = runs[case]
    communication, work = formula(data, job.options(system)) / slow.rate, free.systems[system].step
    assert slow.systems[system].step == pytest.approx(predicted(system, communication, work), rel=0.3)


@pytest.mark.slow
def test_a_pipeline_hides_most_of_the_shorter_of_work_and_communication(tmp_path):
    job, _ = job_of(tmp_path, *WIDE, steps=16, systems=("push_pull", "push_pull, stash"))
    free = ran(replace(job, systems=("push_pull",), repeats=2), 0.0)
    work, sent = free.systems["push_pull"].step, free.systems["push_pull"].sent
    slow = ran(job, 8 * sent / work)
    communication = sent / slow.rate
    assert 0.5 <= communication / work <= 2
    flush, stash = (slow.systems[name].step for name in job.systems)
    assert (flush - stash) / min(work, communication) >= 0.6, slow
