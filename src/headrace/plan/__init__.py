"""Plans: a machine that was measured and a graph whose properties are known decide how a model is trained, and say why."""

from headrace.plan.bill import Bill, PricedRun, Prices, bill_of, price_run, read_prices, read_use
from headrace.plan.decided import Candidate, Choice
from headrace.plan.links.plan import LinkPlan, link_plan
from headrace.plan.links.planned import PlannedLink, planned_link
from headrace.plan.machine import Machine
from headrace.plan.probe import probe
from headrace.plan.ranks import RanksPlan, ranks_plan
from headrace.plan.temporal import PlannedTemporal, TemporalPlan, planned_temporal, temporal_plan
from headrace.plan.whole.advise import advise
from headrace.plan.whole.plan import Configuration, Plan
from headrace.plan.whole.verify import Verification, verify
from headrace.plan.whole.workload import Workload

__all__ = [
    "Bill",
    "Candidate",
    "Choice",
    "Configuration",
    "LinkPlan",
    "Machine",
    "Plan",
    "PlannedLink",
    "PlannedTemporal",
    "PricedRun",
    "Prices",
    "RanksPlan",
    "TemporalPlan",
    "Verification",
    "Workload",
    "advise",
    "bill_of",
    "link_plan",
    "planned_link",
    "planned_temporal",
    "price_run",
    "probe",
    "ranks_plan",
    "read_prices",
    "read_use",
    "temporal_plan",
    "verify",
]
