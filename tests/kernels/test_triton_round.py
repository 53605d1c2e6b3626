"""The GPU's rounding on CPU tensors, under Triton's interpreter."""

from interpreted import run_interpreted

ROUND = """
import torch
from headrace import _native
from headrace.kernels import round_to_bfloat16_reference
from headrace.kernels._round.triton_round import round_rows

torch.manual_seed(0)
odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 3.38e38, 1e-40, -1.0])
for count, width in ((1, 1), (9, 8), (40, 33), (300, 5), (0, 4), (3, 0)):
    values, ids = torch.randn(count, width), torch.randint(1 << 40, (count,))
    values.view(-1)[: len(odd)] = odd[: values.numel()]
    for kind in (torch.int64, torch.int32):
        given = ids.to(kind) if kind == torch.int64 else (ids % 2**31).to(kind)
        expected = round_to_bfloat16_reference(values, given, seed=5, call=count)
        found = round_rows(values, given, key=_native.stream_key(5, 0, count, _native.Purpose.rounding))
        assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), (count, width, kind)
print("equal")
"""


def test_rounding_draws_the_bits_of_the_cpu_under_the_interpreter():
    run_interpreted(ROUND)
