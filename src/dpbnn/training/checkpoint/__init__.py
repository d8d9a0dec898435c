"""Checkpoints: everything needed to continue a run exactly, and as secret as the data itself.

A checkpoint is a folder with four files, readable by their owner alone, which is removed at the end of the run:

    lock      held by the one worker of this folder; the system frees it when that process ends, however it ends
    owner     that worker's host, and a random token of its own
    state     the secret key, the method's state, digests of data, model and plan, the environment, and how long the
              journal was and what it held; written whole or not at all
    journal   a header, and one line for every release, written before the release is used

After an interruption the steps since the last state are taken again, with the same key: those that come out bit for
bit as in the journal reveal nothing new. With the same noise on another sum, two releases together would show the
difference. So there is one worker at a time, and whatever may change a bit means a fresh key.

Guarantees:
    A run resumed in the same environment ends as an uninterrupted one, with its weights and its ledger.
    A checkpoint of other data, another model or another plan is refused.
    One worker at a time works on a checkpoint.
    A checkpoint of another host is refused unless it is taken over, and its former owner then releases nothing more.
    A run that goes on in another environment draws its noise from a fresh key.
    A checkpoint whose journal is missing, cut or changed is refused.
    Nothing is charged less than was released, wherever a run breaks off.
    Files are written atomically, readable by their owner alone, and gone at the end.
"""

from dpbnn.training.checkpoint.digests import digests_of
from dpbnn.training.checkpoint.environment import current_environment
from dpbnn.training.checkpoint.folder import Checkpoint, Saved, opened

__all__ = ["Checkpoint", "Saved", "current_environment", "digests_of", "opened"]
