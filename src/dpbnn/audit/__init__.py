"""Attacks on our own guarantee, from outside.

whole        all attacks on one plan: `audit_plan`
mechanism    canaries through clipping and noise: how much noise protects a record, and epsilon that follows
sampling     whether batches are Poisson samples
one_run      who was in a whole training run, guessed from its release
membership   members told from others by predictions and their uncertainty
bounds       from what was seen to lower bounds on epsilon, with confidence
keeping      what was found, kept with a release and shown on its card
"""

from dpbnn.audit.keeping import keep_with_release
from dpbnn.audit.mechanism import MechanismAudit, audit_mechanism
from dpbnn.audit.membership import MembershipAudit, audit_membership
from dpbnn.audit.one_run import OneRunAudit, audit_training
from dpbnn.audit.sampling import SamplingAudit, audit_sampling
from dpbnn.audit.whole import Audit, audit_plan

__all__ = [
    "Audit",
    "MechanismAudit",
    "MembershipAudit",
    "OneRunAudit",
    "SamplingAudit",
    "audit_mechanism",
    "audit_membership",
    "audit_plan",
    "audit_sampling",
    "audit_training",
    "keep_with_release",
]
