"""A harness of combinations: what must be true whatever meets whatever.

factors.py      the factors of a run, and which of their values go together (one table)
covering.py     few cells in which every allowed pair of values occurs, and every triple at the privacy boundary
makers.py       methods, likelihoods and priors, from their registries: what is new takes part by itself
networks.py     tiny networks, at least one for each engine
subjects.py     what a cell trains: plan, network, records with one person among them
tables.py       the same through an estimator and the command line
running.py      one run of a cell, and all that anybody can see of it
watch.py        the only file that knows how dpbnn works inside
truths.py       the plain truth about a step
untouched.py    what a call must leave as it was
invariants.py   what must be true in every cell
"""
