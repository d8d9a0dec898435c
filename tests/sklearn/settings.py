"""Settings that many tests of the estimators share."""

import pytest

FITS_AGAIN = pytest.mark.filterwarnings("ignore:Fit . of one estimator and its clones")
PUBLIC = {"classes": ["no", "yes"], "dataset_size": 1500}
FULL_BATCH = {"batch_size": 1500, "dataset_size": 1500, "classes": ["no", "yes"], "epochs": 9}
"""Accounted for in no time."""
