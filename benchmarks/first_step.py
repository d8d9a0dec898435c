"""What `start.py` runs in fresh processes: one short fit, and when each part of it was over."""

import json
import sys
import time
from itertools import pairwise
from typing import Any

MARKS = [("", time.perf_counter())]


def mark(name: str) -> None:
    """Note the time at which this part is over."""
    import torch

    if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    MARKS.append((name, time.perf_counter()))


def main(network: str, steps: int) -> None:
    """Prints seconds of each part as JSON."""
    import torch

    MARKS.append(("import torch", time.perf_counter()))
    import dpbnn

    MARKS.append(("import dpbnn", time.perf_counter()))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make, shape = {"MLP": (lambda: dpbnn.networks.MLP(784, [1200, 1200], 10), (784,))}.get(
        network, (lambda: dpbnn.networks.CNN(), (1, 28, 28))
    )
    model = make().to(device)
    x, y = torch.randn(60_000, *shape, device=device), torch.randint(10, (60_000,), device=device)
    mark("model and data made")
    plan = dpbnn.PrivacyPlan.for_budget(
        epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=steps, clip_norm=1.5
    )
    mark("noise for a budget")

    class Watched(dpbnn.SGD):
        """Says when `fit` gets how far."""

        def init(self, *arguments: Any, **named: Any) -> Any:
            """Comes after all checks."""
            mark("fit: checks")
            return super().init(*arguments, **named)

        def update(self, *arguments: Any, **named: Any) -> Any:
            """Ends a step."""
            state = super().update(*arguments, **named)
            if MARKS[-1][0] == "fit: checks":
                mark("fit: first step")
            return state

    dpbnn.fit(model, x, y, method=Watched(0.25), plan=plan, likelihood=dpbnn.Categorical(), seed=0, progress=False)
    mark(f"fit: {steps - 1} more steps, guarantee")
    found = {name: now - before for (_, before), (name, now) in pairwise(MARKS)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
