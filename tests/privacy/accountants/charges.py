"""Charges that the tests of accountants share, and figures that are known for them."""

from dpbnn.privacy.accountants import Charge, account

PAPER_RATE = 256 / 60_000


ALMOST_ONE = 1 - 1e-13  # takes the way of sampled batches and yet has the closed form of full ones


# noise, rate, steps, delta, epsilon by PLD, RDP and GDP
TABLE = [
    (1.3, PAPER_RATE, 3515, 1e-5, 0.8645, 0.9544, 0.8344),
    (1.272074, PAPER_RATE, 3515, 1e-5, 0.8937, 0.9888, 0.8613),
    (1.798985, PAPER_RATE, 3515, 1e-5, 0.5497, 0.6054, 0.5384),
    (10.0, 1.0, 200, 1 / 250, 4.1944, 4.8010, 4.2083),
    (0.5, 0.001, 1000, 1e-6, 4.2351, 5.3292, 0.9764),
    (1.0, 0.01, 1000, 1e-5, 1.8282, 2.1014, 1.6177),
    (2.0, 0.05, 500, 1e-5, 2.5320, 2.7686, 2.4259),
]


def charge(noise, rate, steps, delta, **rest):
    return Charge(rate, ((noise, steps),), delta, **rest)


def epsilon(accountant, *settings, **rest):
    return account(charge(*settings, **rest), accountant).epsilon
