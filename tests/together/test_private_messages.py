"""Errors say what was expected and what to do; nothing that was read from private records, nor how many there are."""

import re
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.data.records import as_records
from dpbnn.metrics.classification import accuracy
from dpbnn.privacy.queries.contributions import numbered

VALUE, ROWS, OTHER_ROWS = 7919, 1523, 1511
SECRET = {str(own) for own in (VALUE, ROWS, OTHER_ROWS, 1536, 2 * 1536)}
"""A label, numbers of inputs and of targets, and those of a batch that is padded to a multiple of 16, or twice that."""


def labels(rows=ROWS):
    return torch.arange(rows) % 2


def spoiled():
    return labels().index_fill(0, torch.tensor([5]), VALUE)


def fit(y, likelihood, outputs=2):
    plan = dpbnn.PrivacyPlan(1000, 100, 1, clip_norm=1.0, noise_multiplier=1.0, delta=1e-4)
    model, method = nn.Linear(3, outputs), dpbnn.SGD(0.1)
    dpbnn.fit(model, torch.zeros(ROWS, 3), y, method=method, plan=plan, likelihood=likelihood, progress=False)


class WrongForMany(dpbnn.Categorical):
    """One number for all records, if there are more than the synthetic ones."""

    def negative_log_likelihood(self, outputs, targets, weights):
        losses = super().negative_log_likelihood(outputs, targets, weights)
        return losses if len(losses) <= 64 else torch.cat([losses, losses])


def clipped(rows, likelihood):
    dpbnn.clipped_gradient_sum(nn.Linear(3, 2), likelihood, torch.zeros(ROWS, 3), labels(rows), 1.0)


def estimator(kind="DPBayesClassifier", y=None, groups=None, **settings):
    from dpbnn import sklearn

    found = getattr(sklearn, kind)(bounds=(-1, 1), dataset_size=1000, **settings)
    found.fit(np.zeros((ROWS, 3)), labels().numpy() if y is None else y, groups)


def search():
    from dpbnn.sklearn import DPBayesClassifier, DPGridSearch

    one = DPBayesClassifier(bounds=(-1, 1), classes=[0, 1], dataset_size=1000)
    DPGridSearch(one, {"hidden": [[]]}).fit(np.zeros((ROWS, 3)), labels().numpy(), np.arange(OTHER_ROWS))


CASES = {
    "a label that is no class": (lambda: fit(spoiled(), dpbnn.Categorical()), "Labels must lie in 0 to 1"),
    "a target that is neither 0 nor 1": (lambda: fit(spoiled(), dpbnn.Bernoulli(), 1), "Targets must be 0 or 1"),
    "fewer targets than inputs": (
        lambda: as_records(torch.zeros(ROWS, 3), labels(OTHER_ROWS), torch.float32),
        "one row per record, got different numbers",
    ),
    "complex inputs": (lambda: as_records(torch.zeros(ROWS, 3) * 1j, labels(), torch.float32), "one row per record"),
    "rows of several lengths": (
        lambda: as_records([[1.0]] * (ROWS - 1) + [[1.0, 2.0]], labels(), torch.float32),
        "rows of one length",
    ),
    "fewer targets than inputs to be clipped": (
        lambda: clipped(OTHER_ROWS, dpbnn.Categorical()),
        "one row per record, got different numbers",
    ),
    "a likelihood that is wrong for a batch": (lambda: clipped(ROWS, WrongForMany()), "one number per record"),
    "fewer groups than rows": (
        lambda: estimator(classes=[0, 1], groups=np.arange(OTHER_ROWS)),
        "groups must be one name for each row",
    ),
    "fewer groups than rows, regression": (
        lambda: estimator("DPBayesRegressor", target_bounds=(0, 1), groups=np.arange(OTHER_ROWS)),
        "groups must be one name for each row",
    ),
    "fewer groups than rows of a search": (search, "groups must be one name for each row"),
    "groups of two columns": (lambda: numbered(np.zeros((ROWS, 2))), "groups must be one name for each row"),
    "a label that was not named": (
        lambda: estimator(y=spoiled().numpy(), classes=[0, 1]),
        "only the labels in classes",
    ),
    "labels to be measured on": (
        lambda: accuracy(torch.full((ROWS, 2), 0.5), spoiled()),
        "labels must lie in 0 to 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_nothing_that_was_read_from_the_records(case):
    call, message = CASES[case]
    with pytest.raises(dpbnn.DpbnnError, match=message) as error:
        call()
    said = "".join(traceback.format_exception_only(error.value))
    for cause in (error.value.__cause__, None if error.value.__suppress_context__ else error.value.__context__):
        said += str(cause)
    assert not set(re.findall(r"\d+", said)) & SECRET
