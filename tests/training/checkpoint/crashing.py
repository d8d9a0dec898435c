"""Runs that are killed, and what became of them, as JSON.

`python -m tests.training.checkpoint.crashing FOLDER WAY POINT ...`

Every run is a process of its own, forked from one that has loaded torch already. WAY "call" kills it in the given call
of the file system, "time" so many thousandths of a second after its state is there. Whatever a run uses is written
to a file of its own.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import dpbnn
from dpbnn.privacy.ledger import fingerprint
from dpbnn.training.steps import eager
from tests.training.test_fit import fit, plan

CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate", "mkdir", "rmdir", "chmod")
STEPS = 4
SLOWLY = 0.015


def at_call(number, fail, patch=setattr):
    """Call `fail` in place of the given call of the file system, counted from 1; says how many there were."""
    calls = [0]

    def counted(original, is_free):
        def instead(*arguments, **options):
            calls[0] += 1
            if calls[0] == number:
                fail()
            return None if is_free else original(*arguments, **options)

        return instead

    for name in CALLS:
        patch(os, name, counted(getattr(os, name), is_free=name == "fsync"))  # nobody cuts the power here
    patch(torch, "save", counted(torch.save, is_free=False))
    return calls


def note_used_releases(log, patch=setattr):
    """Each one, right before it is used."""
    original = eager.EagerSteps.take

    def noted(self, noisy, step):
        with log.open("a") as file:
            file.write(f"{step} {fingerprint(*noisy)}\n")
        original(self, noisy, step)

    patch(eager.EagerSteps, "take", noted)


def used_releases(log):
    return set(log.read_text().splitlines()) if log.exists() else set()


def in_a_child(work):
    """Do the work in a forked process; its id."""
    if child := os.fork():
        return child
    try:
        work()
    except BaseException as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    os._exit(0)


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder, way, points):
    folder = Path(folder)
    settings = {"the_plan": plan(steps=STEPS), "progress": False}
    settings |= {"execution": dpbnn.Execution(checkpoint_seconds=0 if way == "call" else 0.02)}

    def run(name, point=None):
        if point is not None and way == "call":
            at_call(int(point), lambda: os.kill(os.getpid(), signal.SIGKILL))
        note_used_releases(folder / f"{name}.log")
        if way == "time":
            release = eager.EagerSteps.release
            eager.EagerSteps.release = lambda *given: time.sleep(SLOWLY) or release(*given)
        checkpoint = {} if name == "whole" else {"checkpoint": folder / name}
        found = fit(**settings, **checkpoint)
        torch.save((dict(found.posterior.weights), found.settings["releases_charged"]), folder / f"{name}.pt")

    run("whole")  # here, so that nothing is loaded again in every process that follows
    expected, _ = torch.load(folder / "whole.pt")
    outcomes = []
    for point in points:
        name = f"run-{point}"
        child = in_a_child(lambda name=name, point=point: run(name, point))
        if way == "time":
            deadline = time.monotonic() + 60
            while not (folder / name / "state").exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(int(point) / 1000)
            os.kill(child, signal.SIGKILL)
        first = status_of(child)
        begun = (folder / name / "state").exists()
        again = status_of(in_a_child(lambda name=name: run(name)))
        outcome = {"point": point, "first": first, "again": again, "begun": begun}
        if (folder / f"{name}.pt").exists():
            weights, charged = torch.load(folder / f"{name}.pt")
            outcome |= {"same": all(torch.equal(weights[key], expected[key]) for key in expected), "charged": charged}
        outcome |= {"used": len(used_releases(folder / f"{name}.log")), "left": (folder / name).exists()}
        outcomes.append(outcome)
        shutil.rmtree(folder / name, ignore_errors=True)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
