"""Attacks on our own guarantee, from outside.

whole        all attacks on one plan: `audit_plan`
cases        what is sent through single steps: networks of all kinds, settings that cover all pairs
mechanism    canaries through clipping and noise: how much noise protects a person, and epsilon that follows
attack       runs with and without a person        noise    what noise must look like
claim        what a plan claims, read off its settings
rounding     sums over very many records
randomness   whether secret random numbers are drawn once
sampling     whether batches are Poisson samples
one_run      who was in a whole training run, guessed from its release
membership   members told from others by predictions and their uncertainty
bounds       from what was seen to lower bounds on epsilon, with confidence
coverage     what was looked at, and what was not
keeping      what was found, kept with a release and shown on its card
"""

from dpbnn.audit.coverage import Coverage
from dpbnn.audit.mechanism import MechanismAudit, audit_mechanism
from dpbnn.audit.membership import MembershipAudit, audit_membership
from dpbnn.audit.one_run import OneRunAudit, audit_training
from dpbnn.audit.plan import Audit, audit_plan
from dpbnn.audit.randomness import RandomnessAudit, audit_randomness
from dpbnn.audit.rounding import RoundingAudit, audit_rounding
from dpbnn.audit.sampling import SamplingAudit, audit_sampling
from dpbnn.audit.store import keep_with_release

__all__ = [
    "Audit",
    "Coverage",
    "MechanismAudit",
    "MembershipAudit",
    "OneRunAudit",
    "RandomnessAudit",
    "RoundingAudit",
    "SamplingAudit",
    "audit_mechanism",
    "audit_membership",
    "audit_plan",
    "audit_randomness",
    "audit_rounding",
    "audit_sampling",
    "audit_training",
    "keep_with_release",
]
