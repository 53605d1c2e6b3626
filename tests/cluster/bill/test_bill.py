"""Bills against numbers computed by hand, and the paper's."""

import datetime
import math

import pytest

from headrace.cluster.bill import Bill, Call, Prices, Server, bill_of, read_prices, threshold
from headrace.cluster.bill.bill import burst, busy_share, call_price

ROUND = Prices(
    date=datetime.date(2026, 1, 1),
    region="here",
    gb_second=0.001,
    request=0.5,
    gb_per_vcpu=2.0,
    put=0.03,
    get=0.01,
    servers={"small": Server("small", 3.6, 2), "large": Server("large", 36.0, 16)},
)


def call(began=0.0, ms=1000.0, gb=2.0, kind="lambda", **more):
    return Call("0/0/forward/0", began, ms, gb, kind, **more)


def test_a_bill_by_hand():
    servers = [ROUND.server("small"), ROUND.server("large")]
    bill = bill_of(100.0, servers, [call(ms=1500.2, gb=4.0, objects=2), call(ms=0.0)], ROUND)
    assert bill.servers == pytest.approx(100 * 39.6 / 3600)
    assert bill.calls == pytest.approx(1.501 * 4 * 0.001 + 0.5 + 0.5)
    assert bill.objects == pytest.approx(2 * 0.02)
    assert bill.total == pytest.approx(bill.servers + bill.calls + bill.objects)
    assert bill.value == pytest.approx(1 / (100 * bill.total))


@pytest.mark.parametrize("flag", ["relaunched", "duplicate", "failed"])
def test_calls_whose_result_is_not_used_cost_as_much(flag):
    assert call_price(call(**{flag: True}), ROUND) == call_price(call(), ROUND)
    assert bill_of(1.0, [], [call(**{flag: True}), call()], ROUND).calls == 2 * call_price(call(), ROUND)


@pytest.mark.parametrize("kind", ["ray", "threads"])
def test_workers_on_servers_are_not_paid_by_the_call(kind):
    assert bill_of(10.0, [ROUND.server("small")], [call(kind=kind, objects=3)], ROUND) == Bill(10.0, 0.01)


def test_the_values_of_the_paper():
    """GAT on Amazon: ratios of T x C; the abstract says 4.83 and 2.75."""
    ours, cpu, gpu = Bill(853, 2.67), Bill(2093, 3.01), Bill(1039, 10.60)
    assert ours.value / gpu.value == pytest.approx(4.84, abs=0.005)
    assert ours.value / cpu.value == pytest.approx(2.77, abs=0.005)


def test_workers_pay_below_41_percent_of_busy_time():
    prices = read_prices()
    server = prices.server("c5.2xlarge")
    assert server.hour / server.vcpus == pytest.approx(0.0425)
    assert prices.gb_per_vcpu * prices.gb_second * 3600 == pytest.approx(0.104, abs=0.0005)
    assert threshold(server, prices) == pytest.approx(0.41, abs=0.001)


@pytest.mark.parametrize("busy", [0.2, 0.6])
def test_the_threshold_is_where_cores_and_workers_cost_the_same(busy):
    """Without the price of requests; on either side of it the cheaper one is as `threshold` says."""
    prices, seconds, cores = read_prices(), 1000.0, 8
    server = prices.server("c5.2xlarge")
    calls = [call(began=0.0, ms=1000 * seconds * busy, gb=prices.gb_per_vcpu) for _ in range(cores)]
    assert busy_share(calls, seconds, prices) == pytest.approx(busy)
    in_workers, in_server = bill_of(seconds, [], calls, prices).total, bill_of(seconds, [server], [], prices).total
    assert (in_workers < in_server) == (busy < threshold(server, prices))


def test_a_burst_is_the_most_vcpus_at_one_time():
    calls = [call(0.0, 1000), call(0.5, 1000, gb=4.0), call(1.0, 500), call(5.0, 10)]
    assert burst(calls, ROUND) == 3.0  # the third begins when the first has ended
    assert burst([call(gb=0.0, kind="threads")], ROUND) == 1.0
    assert burst([], ROUND) == 0.0
    assert busy_share(calls, 10.0, ROUND) == pytest.approx((1 + 2 + 0.5 + 0.01) / 30)
    assert busy_share([], 10.0, ROUND) is None


def test_what_costs_nothing_is_of_infinite_value():
    assert Bill(0.0, 0.0).value == math.inf
