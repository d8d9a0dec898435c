"""Attacks on what a plan claims, by the code that trains and on synthetic records.

plan         all attacks on one plan: `audit_plan`, and what they say together
checks       what must hold for correct code, with a p-value
cases        targets of attacks on single steps: networks of all kinds, settings that cover all pairs
mechanism    single steps: how much noise protects a person, and the epsilon that follows
attack       runs with and without a person: how far canaries move the sum, and what is released
canaries     synthetic records that are made to be noticed     probe    one run, step by step
claim        the levels of a plan and what they cost, by its settings alone
noise        checks of noise
rounding     sums over very many records
randomness   whether secret random numbers are drawn once
sampling     whether batches are Poisson samples
one_run      who was in a whole training run, guessed from its release
membership   members told from others by predictions and their uncertainty
bounds       lower bounds on epsilon from what was seen, with confidence
coverage     which settings the attacks had, and which they had not
store        an audit kept in the folder of a release and shown on its card
"""

from dpbnn._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
