"""A device that is none: CPU tensors that say they are on "meta", and refuse to meet tensors that do not.

It shows without a GPU where code mixes what is on a device with what is on the host. Kernels of ours are replaced by their plain
reference, for they would launch Triton.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakIdKeyDictionary

from headrace.kernels import aggregate, aggregate_reference

DEVICE = torch.device("meta")
_MAY_MIX = {"Tensor.copy_", "Tensor.to", "Tensor.cpu", "_has_compatible_shallow_copy_type"}


class Elsewhere(TorchFunctionMode):
    """Marks tensors that were moved to `DEVICE` or made there, and what is computed from them."""

    def __init__(self):
        super().__init__()
        self.marked = WeakIdKeyDictionary()

    def is_there(self, tensor):
        return tensor in self.marked

    def mark(self, values):
        if isinstance(values, torch.Tensor):
            self.marked[values] = True
        elif isinstance(values, (tuple, list)):
            for value in values:
                self.mark(value)
        return values

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        name = (resolve_name(function) or getattr(function, "__name__", "")).removeprefix("torch.")
        tensors = list(_tensors((arguments, keywords)))
        there = [self.is_there(tensor) for tensor in tensors]
        if name == "Tensor.device.__get__":
            return DEVICE if there[0] else function(*arguments)
        if name == "Tensor.is_cuda.__get__":
            return there[0]
        if name == "Tensor.to" and there:
            given = [*arguments[1:], *keywords.values()]
            target = next((value for value in given if isinstance(value, (str, torch.device))), None)
            if target is not None:
                dtype = next((value for value in given if isinstance(value, torch.dtype)), arguments[0].dtype)
                with torch._C.DisableTorchFunction():
                    moved = arguments[0].to(dtype).clone()
                return self.mark(moved) if torch.device(target) == DEVICE else moved
        if name == "Tensor.cpu":
            return function(arguments[0]).clone()
        if function == torch.Tensor.data.__set__:
            function(*arguments)
            return self.mark(arguments[0]) if there[1] else None
        made_there = torch.device(keywords.get("device") or "cpu") == DEVICE
        if made_there:
            keywords["device"] = torch.device("cpu")
        sized = [mark for tensor, mark in zip(tensors, there, strict=True) if tensor.dim()]
        if name not in _MAY_MIX and any(sized) and not all(sized):
            shapes = [(tuple(t.shape), mark) for t, mark in zip(tensors, there, strict=True)]
            raise RuntimeError(f"{name} mixes tensors of two devices: {shapes}")
        result = function(*arguments, **keywords)
        return self.mark(result) if any(there) or made_there else result


def _tensors(values):
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


@contextmanager
def elsewhere():
    """Inside, `DEVICE` is one that snapshots can be moved to, and sums of what is there are those of the reference."""
    mode = Elsewhere()

    def summed(x, indptr, indices, **told):
        if not mode.is_there(x):
            return aggregate(x, indptr, indices, **told)
        known = {name: told.get(name) for name in ("weight", "scale", "row_scale")}
        for name, values in (("indptr", indptr), ("indices", indices), *known.items()):
            assert values is None or mode.is_there(values), f"{name} of a sum is not where x is"
        with torch._C.DisableTorchFunction():
            return mode.mark(aggregate_reference(x, indptr, indices, **known))

    with ExitStack() as patched:
        for module in ("headrace.nn.neighbor_sum", "headrace.nn.convs.gcn"):
            patched.enter_context(mock.patch(f"{module}.aggregate", summed))
        patched.enter_context(mock.patch("headrace.graph.snapshots.device_of", torch.device))
        patched.enter_context(mode)
        yield mode
