"""The table of benchmarks: names, devices and own options."""

import dataclasses

import pytest
from typer.testing import CliRunner

from headrace.bench import BENCHES, Setting
from headrace.cli import app


@pytest.mark.parametrize("name", [name for name in BENCHES if BENCHES[name].help.endswith("--device cuda")])
def test_a_gpu_name_is_another_benchmark_with_cuda_as_its_device(name):
    ours = BENCHES[name]
    other = BENCHES[ours.help.removesuffix(" --device cuda")]
    assert ours.setting().device == "cuda"
    assert ours.setting(device="cpu").device == "cpu"
    assert (ours.on_cpu, ours.on_cuda) == (other.on_cpu, other.on_cuda)
    assert [field.name for field in dataclasses.fields(ours.setting)] == [field.name for field in dataclasses.fields(other.setting)]


def test_a_benchmark_of_the_cpu_refuses_a_gpu():
    with pytest.raises(ValueError, match="bench cache runs on a CPU alone, not on cuda"):
        BENCHES["cache"].run(Setting(device="cuda"))
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, not 'tpu'"):
        Setting(device="tpu")


def test_options_of_one_benchmark_are_not_options_of_others():
    assert CliRunner().invoke(app, ["bench", "sampling", "--peers-python", "python"]).exit_code == 2
    assert "--peers-python" in CliRunner().invoke(app, ["bench", "link", "--help"], env={"COLUMNS": "200"}).output
