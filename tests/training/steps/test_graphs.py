"""What keeps a capture right: nothing waits for the device, nothing is decided on the host; failures leave no trace."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dpbnn.training.steps.graphs import Graphs, NoSync, NotCapturable

WAITS = {
    "a number": lambda values: values.sum().item(),
    "a decision": lambda values: bool(values.any()),
    "rows that a mask picks": lambda values: values[values > 0],
    "places that are not zero": lambda values: values.nonzero(),
    "a float": lambda values: float(values[0]),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_makes_the_host_wait_for_the_device_is_refused(wait):
    values = torch.arange(3.0)
    with pytest.raises(NotCapturable, match="makes the host wait for the device"), NoSync("cpu"):
        wait(values)
    wait(values)


def test_work_that_stays_on_the_device_and_numbers_of_the_host_are_let_through():
    values, place = torch.arange(3.0), torch.zeros(3)
    with NoSync("cpu"):
        place.copy_((values @ values).sqrt() * values.clamp(max=1.0))
        place[1:].add_(values.index_select(0, torch.tensor([0, 1])))
    with NoSync("cuda"):
        assert [wait(values) is not None for wait in WAITS.values()] == [True] * len(WAITS)


def test_other_threads_may_wait_meanwhile():
    with NoSync("cpu"), ThreadPoolExecutor(1) as other:
        assert other.submit(WAITS["a number"], torch.arange(3.0)).result() == 3.0


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_torch_usable():
    device = torch.device("cuda", 0)
    graphs = Graphs(device, [torch.Generator(device)])
    with pytest.raises(RuntimeError), graphs.capture(lambda: 0):
        float(torch.rand(3, device=device).sum())
    torch.rand(3, device=device)
    nn.functional.dropout(torch.ones(3, device=device))
    with Graphs(device, [torch.Generator(device)]).capture(lambda: 0) as graph:
        torch.rand(3, device=device)
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_work_that_draws_on_the_host_is_refused():
    device = torch.device("cuda", 0)
    graphs = Graphs(device, [torch.Generator(device)])
    refused = pytest.raises(NotCapturable, match="draws random numbers on the host")
    with refused, graphs.capture(lambda: torch.rand(()).item()):
        torch.zeros(3, device=device).mul_(float(torch.rand(())))
