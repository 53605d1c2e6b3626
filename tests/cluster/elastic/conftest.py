"""Executors of each kind. Ray and the local Lambda start once per module; both take seconds."""

import os

import pytest

import elastic_worker
from elastic_cases import worker_path
from headrace.cluster.elastic import FolderObjects, LambdaExecutor, RayExecutor, ThreadExecutor, run_task
from headrace.cluster.elastic.workers.executors.ray import start_ray

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def _credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def _no_credentials(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def bucket():
    """The address of a server of moto's, with a bucket `rows`."""
    boto3 = pytest.importorskip("boto3", reason="needs headrace[aws]")
    server = pytest.importorskip("moto.server", reason="needs moto[server]").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id="t", aws_secret_access_key="t", region_name="us-east-1")
    client.create_bucket(Bucket="rows")
    client.close()
    yield url
    server.stop()


@pytest.fixture(scope="module")
def local_lambda():
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    pytest.importorskip("awslambdaric", reason="needs headrace[aws]")
    from headrace.cluster.local_lambda import LocalLambda

    with LocalLambda("elastic_worker.handle", environment={"PYTHONPATH": worker_path()}) as aws:
        yield aws


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="needs headrace[ray]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", worker_path())
        start_ray(cpus=2)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def ray_executor(ray):
    with RayExecutor(1, cpus=0) as pool:
        yield pool


@pytest.fixture(params=["threads", "ray", "lambda"])
def executor(request, tmp_path):
    """An executor of each kind, with one worker; `executor.runs` is what to submit."""
    if request.param == "threads":
        pool = ThreadExecutor(1)
        function = elastic_worker.run_in_thread
    elif request.param == "ray":
        pool = request.getfixturevalue("ray_executor")
        function = elastic_worker.run
    else:
        aws = request.getfixturevalue("local_lambda")
        request.getfixturevalue("_credentials")
        pool = LambdaExecutor(1, endpoint_url=aws.endpoint_url, objects=FolderObjects(tmp_path / "objects"))
        function = run_task
    pool.runs = function
    yield pool
    if request.param != "ray":
        pool.shutdown()
