"""`refuse_batch_norms`: a task computes rows of one interval, so a row may depend on no other row of it."""

from __future__ import annotations

from torch import nn


def refuse_batch_norms(model: nn.Module) -> None:
    """Raise ValueError where the model has a batch norm: what it makes of a row depends on the other rows beside it.

    >>> import headrace as hr
    >>> refuse_batch_norms(hr.nn.GNN(16, 32, 4, layers=2, conv="gin", inner_norm="layer"))
    >>> refuse_batch_norms(hr.nn.GNN(16, 32, 4, layers=1, conv="gin"))
    Traceback (most recent call last):
    ...
    ValueError: elastic workers compute an interval of nodes at a time, and a batch norm needs all of them: layers.0.conv.nn.1 is \
one; use inner_norm="layer" or "none" (--inner-norm)
    """
    names = [name or "the model" for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not names:
        return
    inner = [name for name in names if ".nn." in name]  # of GIN's network
    options = [option for option, is_used in (("inner_norm", inner), ("norm", len(inner) < len(names))) if is_used]
    remedy = " and ".join(f'{option}="layer" or "none" (--{option.replace("_", "-")})' for option in options)
    are = "is one" if len(names) == 1 else "are such"
    raise ValueError(
        "elastic workers compute an interval of nodes at a time, and a batch norm needs all of them: "
        f"{', '.join(names)} {are}; use {remedy}"
    )
