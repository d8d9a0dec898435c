"""Networks, likelihoods, priors, dropout, and replicas of a user's module."""
