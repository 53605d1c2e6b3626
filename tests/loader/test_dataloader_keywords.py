"""What torch's DataLoader has, loaders have: orders of one's own, positions, what those read who are passed a loader."""

import threading

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader, ZipLoader


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=300, edges=3000, classes=4, features=8)


def nodes_of(loader):
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


def all_nodes_of(loader):
    return [node for nodes in nodes_of(loader) for node in nodes]


def test_a_sampler_decides_the_order_of_inputs(data):
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist()
    for shard, expected in ((None, order), ((0, 2), order[:16] + order[32:])):
        loader = NeighborLoader(data, [3], range(100, 140), sampler=order, batch_size=16, shard=shard)
        assert all_nodes_of(loader) == [100 + position for position in expected]
        assert loader.sampler is order
    short = NeighborLoader(data, [3], range(100, 140), sampler=order, batch_size=16, drop_last=True)
    assert len(short) == len(nodes_of(short)) == 2


def test_a_sampler_of_torch_is_read_anew_each_epoch_and_by_torchs_seed(data):
    loader = NeighborLoader(data, [3], batch_size=10, sampler=WeightedRandomSampler(torch.rand(300), 25), staleness=3)
    torch.manual_seed(3)
    first, second = nodes_of(loader), nodes_of(loader)
    assert [len(nodes) for nodes in first] == [10, 10, 5]
    assert first != second
    torch.manual_seed(3)
    assert nodes_of(loader) == first


def test_a_batch_sampler_decides_the_batches(data):
    batches = BatchSampler(SubsetRandomSampler([5, 3, 8]), 2, drop_last=False)
    loader = NeighborLoader(data, [3], range(100, 140), batch_sampler=batches)
    assert len(loader) == 2
    assert sorted(all_nodes_of(loader)) == [103, 105, 108]
    assert loader.batch_size is None


def test_a_batch_by_a_sampler_is_the_batch_of_the_same_inputs_in_order(data):
    plain = NeighborLoader(data, [3, 2], batch_size=50, seed=7)
    ordered = NeighborLoader(data, [3, 2], batch_size=50, seed=7, sampler=SequentialSampler(range(300)))
    assert all(torch.equal(a.n_id, b.n_id) for a, b in zip(plain, ordered, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampler": [0], "shuffle": True}, ValueError, "sampler decides the order"),
        ({"sampler": [0], "batch_sampler": [[0]]}, ValueError, "sampler decides the order"),
        ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, "batch_sampler decides the batches"),
        ({"sampler": [300]}, IndexError, "positions from 300 to 300, but there are 300 inputs"),
        ({"input_id": [1, 2]}, ValueError, "input_id has 2 entries for 300 inputs"),
        ({"custom_cls": dict}, ValueError, "custom_cls is for pairs"),
        ({"data": (1, 2)}, TypeError, "must be a headrace Dataset or Graph, or a PyG Data, not tuple"),
        ({"timeout": torch.ones(1000)}, ValueError, r"timeout=Tensor of shape \(1000,\)"),
        ({"generator": list(range(1000))}, ValueError, r"generator=list of 1000 "),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(data, options, error, message):
    with pytest.raises(error, match=message) as raised:
        list(NeighborLoader(**{"data": data, "num_neighbors": [3], **options}))
    assert len(str(raised.value)) < 200


def test_inputs_may_have_ids_of_their_own(data):
    loader = NeighborLoader(data, [3], [5, 9, 7], input_id=[50, 90, 70], batch_size=2)
    assert [batch.input_id.tolist() for batch in loader] == [[50, 90], [70]]
    links = LinkNeighborLoader(data, [3], torch.tensor([[1, 2], [3, 4]]), input_id=[8, 6])
    assert [batch.input_id.tolist() for batch in links] == [[8], [6]]


def test_workers_are_begun_once_a_thread(data):
    begun = []
    loader = NeighborLoader(
        data, [3], batch_size=5, threads=3, staleness=6, worker_init_fn=lambda worker: begun.append((worker, threading.get_ident()))
    )
    list(loader)
    workers, threads = zip(*begun, strict=True)
    assert sorted(workers) == list(range(len(begun)))
    assert 1 <= len(set(threads)) == len(begun) <= 3
    assert threading.get_ident() not in threads
    loader = NeighborLoader(data, [3], staleness=0, worker_init_fn=lambda worker: pytest.fail("there is no worker"))
    next(iter(loader))


def test_positions_are_collated_to_batches(data):
    loader = NeighborLoader(data, [3], range(100, 140), batch_size=4)
    assert loader.dataset == range(40)
    batch = loader.collate_fn([loader.dataset[i] for i in (3, 1)])
    assert batch.n_id[:2].tolist() == [103, 101]
    assert torch.equal(batch.n_id, loader.collate_fn([3, 1]).n_id)
    draws = []
    for loader.epoch in range(5):
        draws.append(tuple(loader.collate_fn([3, 1]).n_id.tolist()))
    assert len(set(draws)) > 1


def test_those_who_look_see_whether_inputs_are_shuffled(data):
    assert type(NeighborLoader(data, [3]).sampler) is SequentialSampler
    assert type(NeighborLoader(data, [3], shuffle=True).sampler) is RandomSampler
    loader = NeighborLoader(data, [3], batch_size=7, drop_last=True, num_workers=2, prefetch_factor=3)
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor) == (7, True, 2, 3)
    assert loader.batch_sampler is None
    assert loader.neighbor_sampler.fanouts == [3]


def test_zipped_loaders_have_the_same_positions_and_their_own_draws(data):
    loaders = [NeighborLoader(data, [3, 2], range(50), seed=1), NeighborLoader(data, [4], range(50, 95), seed=2)]
    zipped = ZipLoader(loaders, batch_size=10, threads=2)
    assert len(zipped) == 5
    assert zipped.dataset == range(45)
    for i, (one, other) in enumerate(zipped):
        positions = torch.arange(45)[10 * i : 10 * i + 10]
        assert torch.equal(one.n_id, loaders[0](positions, batch=i).n_id)
        assert torch.equal(other.n_id, loaders[1](positions, batch=i).n_id)
    shuffled = ZipLoader(loaders, batch_size=45, shuffle=True, seed=3)
    one, other = next(iter(shuffled))
    assert torch.equal(one.input_id, other.input_id)
    assert sorted(one.input_id.tolist()) == list(range(45))
    with pytest.raises(TypeError, match="headrace loaders"):
        ZipLoader([])


@pytest.mark.filterwarnings("ignore")  # of lightning's own
def test_lightning_fits_a_model(data):
    lightning = pytest.importorskip("lightning", reason="needs lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear, self.seen = torch.nn.Linear(8, 4), []

        def training_step(self, batch, _):
            self.seen.append(batch.n_id[: batch.batch_size].tolist())
            return torch.nn.functional.cross_entropy(self.linear(batch.x[: batch.batch_size]), batch.y)

        def validation_step(self, batch, _):
            self.linear(batch.x)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    make = lambda: NeighborLoader(data, [3], batch_size=100, shuffle=True, seed=1)  # noqa: E731
    model, train = Model(), make()
    lightning.Trainer(max_epochs=2, enable_model_summary=False, **options).fit(
        model, train, NeighborLoader(data, [3], batch_size=150)
    )
    again = make()
    assert model.seen == nodes_of(again) + nodes_of(again)
