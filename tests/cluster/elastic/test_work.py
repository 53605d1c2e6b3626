"""`run_task`: bytes to bytes, with one thread of torch; errors come back as results; warm workers keep objects."""

import os
import threading

import pytest
import torch

import elastic_worker  # noqa: F401
from headrace._arrays import thread_count
from headrace.cluster import run_task
from headrace.cluster.elastic import FolderObjects, Reference, TaskError, Worker, operation, pack, pack_task, read_result
from headrace.cluster.elastic.workers.operations import find_operation
from headrace.cluster.elastic.workers.payload import pack_batch, unpack_batch
from headrace.cluster.elastic.workers.torch_threads import keep_one_torch_thread


def _dense(**arrays):
    return pack_task("test.dense", {}, {"x": torch.randn(50, 30), "weight": torch.randn(30, 20)} | arrays)


@pytest.mark.usefixtures("one_thread")
def test_a_task_computes_the_operation_it_names():
    x, weight = torch.randn(50, 30), torch.randn(30, 20)
    facts, arrays = read_result(run_task(_dense(x=x, weight=weight)))
    assert torch.equal(arrays["y"], torch.relu(x @ weight))
    assert facts["pid"] == os.getpid()
    assert facts["milliseconds"] > 0
    assert facts["gets"] == 0


def test_a_task_has_one_thread_of_torch_and_leaves_the_number_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert read_result(run_task(_dense()))[1]["threads"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_thread_that_keeps_to_one_leaves_others_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    counts = []
    try:
        threads = [
            threading.Thread(target=lambda: (keep_one_torch_thread(), counts.append(torch.get_num_threads()))) for _ in range(8)
        ]
        threads.append(threading.Thread(target=lambda: counts.append(torch.get_num_threads())))
        for thread in threads[:-1]:
            thread.start()
        for thread in threads[:-1]:
            thread.join()
        threads[-1].start()
        threads[-1].join()
        assert counts == [1] * 8 + [2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_comes_back_with_key_type_message_and_traceback():
    result = run_task(pack_task("test.fail", {"message": "no such number"}, {}))
    with pytest.raises(TaskError, match="no such number") as raised:
        read_result(result, key=("epoch", 3))
    assert raised.value.key == ("epoch", 3)
    assert raised.value.kind == "ArithmeticError"
    assert "in fail" in raised.value.remote
    assert "('epoch', 3)" in str(raised.value)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "no message"),
        (b"\x00" * 1000, "no message"),
        (pack({}, {}), "no operation is called 'None'"),
        (pack({"operation": "os.system"}, {}), "no operation is called 'os.system'"),
        (pack({"operation": ["test.dense"]}, {}), "no operation"),
        (pack({"operation": "test.dense", "references": 3}, {}), "items"),
        (pack({"operation": "test.dense", "references": {"x": "y"}, "objects": "ftp://here"}, {}), "address"),
    ],
)
def test_a_bad_payload_is_an_error_of_its_task(payload, said):
    with pytest.raises(TaskError, match=said):
        read_result(run_task(payload))


def test_operations_have_one_name_each():
    with pytest.raises(ValueError, match=r"already: elastic_worker\.dense"):
        operation("test.dense")(lambda options, arrays: {})
    operation("test.dense")(find_operation("test.dense"))  # the same again is fine


@pytest.mark.usefixtures("one_thread")
def test_references_are_read_once_by_a_warm_worker(tmp_path):
    objects = FolderObjects(tmp_path)
    weight = torch.randn(30, 20)
    objects.put("weights/1", pack({}, {"weight": weight}))
    x = torch.randn(5, 30)
    payload = pack_task("test.dense", {}, {"x": x, "weight": Reference("weights/1")}, objects=objects)
    assert len(payload) < 2000
    worker = Worker()
    gets = []
    for _ in range(3):
        facts, arrays = read_result(worker.run(payload))
        gets.append(facts["gets"])
        assert torch.equal(arrays["y"], torch.relu(x @ weight))
    assert gets == [1, 0, 0]
    objects.delete("weights/1")
    assert read_result(worker.run(payload))[0]["gets"] == 0


def test_a_worker_keeps_the_last_few_objects(tmp_path):
    objects = FolderObjects(tmp_path)
    for version in range(4):
        objects.put(f"weights/{version}", pack({}, {"weight": torch.full((3, 2), float(version))}))
    worker = Worker(keep=2)

    def gets(version):
        arrays = {"x": torch.ones(1, 3), "weight": Reference(f"weights/{version}")}
        facts, computed = read_result(worker.run(pack_task("test.dense", {}, arrays, objects=objects)))
        assert computed["y"].tolist() == [[3.0 * version] * 2]
        return facts["gets"]

    assert [gets(version) for version in (0, 1, 0, 1, 2, 1, 0)] == [1, 1, 0, 0, 1, 0, 1]


def test_a_reference_that_leads_nowhere_says_so(tmp_path):
    objects = FolderObjects(tmp_path)
    objects.put("weights/1", pack({}, {"bias": torch.ones(2)}))
    for name, said in (
        ("weights/1", "no array 'weight'"),
        ("weights/2", "no object 'weights/2'"),
        ("../secret", "name of an object"),
    ):
        payload = pack_task("test.dense", {}, {"x": torch.ones(1, 3), "weight": Reference(name)}, objects=objects)
        with pytest.raises(TaskError, match=said):
            read_result(run_task(payload))
    with pytest.raises(ValueError, match="objects="):
        pack_task("test.dense", {}, {"weight": Reference("weights/1")})


def test_a_batch_gives_each_task_its_own_result():
    payloads = [_dense(), pack_task("test.fail", {"message": "alone"}, {}), _dense(), b"nonsense"]
    results = unpack_batch(run_task(pack_batch(payloads)))
    assert len(results) == 4
    for place in (0, 2):
        assert torch.equal(read_result(results[place])[1]["y"], read_result(run_task(payloads[place]))[1]["y"])
    for place, said in ((1, "alone"), (3, "no message")):
        with pytest.raises(TaskError, match=said):
            read_result(results[place])


def test_a_task_takes_one_thread_of_torch_and_of_the_kernels():
    seen = []

    @operation("test.threads")
    def threads(options, arrays):
        seen.append((torch.get_num_threads(), thread_count(None)))
        return {}

    before = thread_count(None)
    read_result(run_task(pack_task("test.threads", {}, {})))
    assert seen == [(1, 1)]
    assert thread_count(None) == before
    assert thread_count(3) == 3
