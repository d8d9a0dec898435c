"""Differentially private Bayesian neural networks."""
