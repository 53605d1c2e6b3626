"""Plans: a machine that was measured and a graph whose properties are known decide how a model is trained, and say why."""

from headrace.plan.advise import advise
from headrace.plan.decided import Candidate, Choice
from headrace.plan.link_plan import LinkPlan, link_plan
from headrace.plan.machine import Machine
from headrace.plan.plan import Configuration, Plan
from headrace.plan.planned_link import PlannedLink, planned_link
from headrace.plan.probe import probe
from headrace.plan.verify import Verification, verify
from headrace.plan.workload import Workload

__all__ = [
    "Candidate",
    "Choice",
    "Configuration",
    "LinkPlan",
    "Machine",
    "Plan",
    "PlannedLink",
    "Verification",
    "Workload",
    "advise",
    "link_plan",
    "planned_link",
    "probe",
    "verify",
]
