"""The public names and the modules that hold them; `dpbnn._lazy` imports each when it is first used."""

from dpbnn.audit.coverage import Coverage as Coverage
from dpbnn.audit.mechanism import MechanismAudit as MechanismAudit
from dpbnn.audit.mechanism import audit_mechanism as audit_mechanism
from dpbnn.audit.membership import MembershipAudit as MembershipAudit
from dpbnn.audit.membership import audit_membership as audit_membership
from dpbnn.audit.one_run import OneRunAudit as OneRunAudit
from dpbnn.audit.one_run import audit_training as audit_training
from dpbnn.audit.plan import Audit as Audit
from dpbnn.audit.plan import audit_plan as audit_plan
from dpbnn.audit.randomness import RandomnessAudit as RandomnessAudit
from dpbnn.audit.randomness import audit_randomness as audit_randomness
from dpbnn.audit.rounding import RoundingAudit as RoundingAudit
from dpbnn.audit.rounding import audit_rounding as audit_rounding
from dpbnn.audit.sampling import SamplingAudit as SamplingAudit
from dpbnn.audit.sampling import audit_sampling as audit_sampling
from dpbnn.audit.store import keep_with_release as keep_with_release
