"""Membership: signals of a release that remembers its records tell who they are, those of a private one hardly do."""

import torch

import dpbnn
from dpbnn.audit import audit_membership


def test_members_are_told_apart_where_there_is_no_noise_and_hardly_where_there_is():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 30, generator=generator), torch.randint(2, (400,), generator=generator)
    member, other = (x[:200], y[:200]), (x[200:], y[200:])
    shape = {"dataset_size": 200, "batch_size": 200, "steps": 60}
    plans = (
        dpbnn.PrivacyPlan.without_privacy(**shape),
        dpbnn.PrivacyPlan.for_budget(epsilon=1.0, delta=1e-5, clip_norm=1.0, **shape),
    )
    found = []
    for plan in plans:
        release = dpbnn.fit(
            dpbnn.networks.MLP(30, [64], 2),
            *member,
            method=dpbnn.SGD(1.0),
            plan=plan,
            likelihood=dpbnn.Categorical(),
            progress=False,
        )
        found.append(audit_membership(release, member, other))
    exposed, hidden = (audit.signals["likelihood of the target"].auc for audit in found)
    assert exposed > 0.8
    assert hidden < 0.68
    assert found[1].most_by_the_guarantee < 0.03 < found[0].most_by_the_guarantee
