import pytest

from headrace.nn.convs import gcn, gin, sage


@pytest.fixture
def widths(monkeypatch):
    """The widths that layers sum."""
    seen = []
    for module in (sage, gcn, gin):
        plain = module.aggregate
        monkeypatch.setattr(module, "aggregate", lambda x, *a, f=plain, **k: (seen.append(x.shape[1]), f(x, *a, **k))[1])
    return seen
