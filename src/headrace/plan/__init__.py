"""Plans: a machine that was measured and a graph whose properties are known decide how a model is trained, and say why."""

from headrace.plan.advise import advise
from headrace.plan.machine import Machine
from headrace.plan.plan import Candidate, Choice, Configuration, Plan
from headrace.plan.probe import probe
from headrace.plan.verify import Verification, verify
from headrace.plan.workload import Workload

__all__ = ["Candidate", "Choice", "Configuration", "Machine", "Plan", "Verification", "Workload", "advise", "probe", "verify"]
