"""Objects: a folder and a bucket behave alike, and count their requests."""

import threading

import pytest

from headrace.cluster.elastic import FolderObjects, Requests, S3Objects, open_objects


@pytest.fixture(params=["folder", "s3"])
def objects(request, tmp_path):
    if request.param == "folder":
        return FolderObjects(tmp_path / "objects")
    url = request.getfixturevalue("bucket")
    request.getfixturevalue("_credentials")
    return S3Objects("rows", endpoint_url=url)


def test_objects_come_back_and_requests_are_counted(objects):
    data = bytes(range(256)) * 1000
    objects.put("weights/layer-1/v_2", data)
    objects.put("weights/layer-1/v_3", b"")
    assert objects.get("weights/layer-1/v_2") == data
    assert objects.get("weights/layer-1/v_3") == b""
    objects.delete("weights/layer-1/v_2")
    objects.delete("weights/layer-1/v_2")
    with pytest.raises(KeyError, match="v_2"):
        objects.get("weights/layer-1/v_2")
    assert objects.requests == Requests(puts=2, gets=3, deletes=2)


def test_another_process_opens_the_same_store_by_its_address(objects):
    objects.put("one", b"1")
    assert open_objects(objects.address).get("one") == b"1"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".hidden", "a/", "a b", "é", "x" * 501])
def test_a_name_that_could_leave_the_store_is_refused(objects, name):
    with pytest.raises(ValueError, match="name of an object"):
        objects.put(name, b"")
    assert objects.requests == Requests()


def test_a_reader_never_sees_half_an_object(tmp_path):
    objects = FolderObjects(tmp_path)
    small, large = b"a" * 10, b"b" * 3_000_000
    objects.put("x", small)
    writer = threading.Thread(target=lambda: [objects.put("x", large if i % 2 else small) for i in range(20)])
    writer.start()
    while writer.is_alive():
        assert objects.get("x") in (small, large)
    writer.join()


@pytest.mark.parametrize("address", ["", "folder:relative", "s3://", "http://host", "file:///etc"])
def test_an_unknown_address_is_refused(address):
    with pytest.raises(ValueError, match="address of objects"):
        open_objects(address)


@pytest.mark.usefixtures("_no_credentials")
def test_a_bucket_without_credentials_is_an_error_at_once():
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    with pytest.raises(ValueError, match="credentials"):
        S3Objects("rows")
