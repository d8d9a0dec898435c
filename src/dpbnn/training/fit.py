"""`fit`: a model, records and a plan go in; a release comes out.

One run, top to bottom: check everything -> for each step: Poisson batch -> clipped sum -> **noise** -> charge ->
update -> posterior + guarantee = release. What comes after the noise is never handed data.
"""

from typing import Any

import torch
from torch import nn

from dpbnn.device.execution import Execution
from dpbnn.methods import Method
from dpbnn.methods.store import reserved
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.release.release import Release
from dpbnn.training.checkpoint import opened
from dpbnn.training.loop import train
from dpbnn.training.public_measure import PublicMeasure
from dpbnn.training.run import prepared

__all__ = ["fit"]


def fit(
    model: nn.Module,
    X: Any,
    y: Any = None,
    *,
    method: Method[Any],
    plan: PrivacyPlan,
    likelihood: Likelihood,
    seed: int | None = None,
    device: str | torch.device | None = None,
    execution: Execution | None = None,
    checkpoint: Any = None,
    keep_checkpoint: bool = False,
    take_over: bool = False,
    progress: bool = True,
    public_data: tuple[Any, Any] | None = None,
    unsafe_diagnostics: bool = False,
    unsafe_seed: int | None = None,
) -> Release:
    """Train under a privacy plan.

    Args:
        model: any module that keeps records apart; it is neither wrapped nor changed, and its initial weights must
            not depend on the private data. Parameters with ``requires_grad=False`` stay as they are.
        X: inputs, records first: a tensor, a NumPy array, or a map-style `Dataset` of (x, y) pairs.
        y: targets, records first; None for a `Dataset`.
        method: how released gradients become a posterior, such as ``SGD(learning_rate=0.25)``.
        plan: what will be charged, and with it sampling, clipping and noise.
        likelihood: gives each record's loss from the model's output.
        seed: for the method's draws; it never reaches sampling, masks or noise.
        device: where to train; the model's by default.
        execution: speed and memory.
        checkpoint: a folder; an interrupted run that is started again with it continues. It is as secret as the data,
            must lie outside of anything published, must not be copied, and is removed at the end. One process at a time
            works on it. Where a run goes on with another device, precision, number of threads or version, it draws its
            noise afresh, and steps since the last state are charged again.
        keep_checkpoint: leave its removal to the caller: until then, the same call gives the same release again.
        take_over: continue also a checkpoint of another host, whose worker is gone or must stop: if it still runs, it
            stops before its next release. Has no effect on a checkpoint of this host.
        progress: whether to show a progress bar, if there is a terminal.
        public_data: (X, y) that are declared public, to be measured on along the way.
        unsafe_diagnostics: keep clip shares, norms and batch sizes, which have no noise; voids the guarantee.
        unsafe_seed: make sampling and noise repeatable, for tests; voids the guarantee.

    Returns:
        The posterior with its guarantee.

    Guarantees:
        No step is taken beyond the plan.
        Everything visible depends on the records only through the noisy sums.
        A resumed run ends as an uninterrupted one.
    """
    with opened(checkpoint, take_over) as folder:
        options = device, execution, unsafe_diagnostics, unsafe_seed
        run = prepared(model, X, y, method, plan, likelihood, seed, *options, must_try=True)
        measure = None if public_data is None else PublicMeasure.on(run.work.checked, public_data, plan.steps)
        run = run.linted(X, y, public_data)

        with reserved(run.prepared.folder, is_resumed=folder is not None and folder.is_begun):
            is_void = bool(run.work.voided_by) or (folder is not None and folder.is_seeded_by_user)
            ledger = Ledger.open(run.work.plan, is_void=is_void)
            position = run.begin(ledger, folder)
            train([position], folder, measure, progress)
            release = run.draft(position, () if measure is None else measure.history).release()
        if keep_checkpoint:
            position.save(folder)
        elif folder is not None:
            folder.remove()
    return release
