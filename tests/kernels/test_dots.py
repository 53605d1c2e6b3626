import pytest
import torch

from headrace.kernels import dots, dots_reference


@pytest.mark.parametrize("width", [1, 47, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_both_ends_equal_the_reference(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    degrees = torch.randint(0, 5, (30,))
    degrees[-1] = 0
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    indices = torch.randint(0, 20, (int(indptr[-1]),), dtype=torch.int32)
    left, x = torch.randn(30, width, dtype=dtype), torch.randn(20, width, dtype=dtype)
    found = dots(left, x, indptr, indices)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found, dots_reference(left, x, indptr, indices), rtol=1e-5, atol=1e-5)
    assert torch.equal(found, dots(left, x, indptr, indices, threads=1))


def test_no_entries_and_wrong_shapes() -> None:
    none = torch.empty(0, dtype=torch.int32)
    assert dots(torch.randn(2, 3), torch.randn(4, 3), torch.zeros(3, dtype=torch.int64), none).shape == (0,)
    with pytest.raises(ValueError, match="one width"):
        dots(torch.randn(2, 3), torch.randn(4, 2), torch.zeros(3, dtype=torch.int64), none)
    with pytest.raises(ValueError, match="indptr must be int64 with 3 elements"):
        dots(torch.randn(2, 3), torch.randn(4, 3), torch.zeros(2, dtype=torch.int64), none)
    with pytest.raises(ValueError, match="one type"):
        dots(torch.randn(2, 3), torch.randn(4, 3).double(), torch.zeros(3, dtype=torch.int64), none)
