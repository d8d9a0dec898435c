"""An audit kept in the folder of the release that it is of, and shown on its card."""

import json
import os
from datetime import date
from pathlib import Path

import torch

from dpbnn._version import __version__
from dpbnn.audit.plan import Audit
from dpbnn.errors import DpbnnError
from dpbnn.release.card import CARD, card
from dpbnn.release.release import guarantee_of, settings_of

__all__ = ["AUDIT", "keep_with_release"]

AUDIT = "audit.json"


def keep_with_release(audit: Audit, path: str | os.PathLike[str]) -> None:
    """Write ``audit.json`` into the folder of a release, and its card again."""
    folder = Path(path)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    about = {"date": date.today().isoformat(), "dpbnn": __version__, "torch": torch.__version__, "machine": machine}
    results = about | {"in_words": str(audit)} | json.loads(audit.to_json())
    try:
        texts = {AUDIT: json.dumps(results, indent=2), CARD: card(guarantee_of(folder), settings_of(folder), results)}
        for name, text in texts.items():
            fresh = folder / f".{name}.new"
            fresh.write_text(text)
            fresh.replace(folder / name)
    except OSError as error:
        raise DpbnnError(f"{folder} must be writable to keep the audit in it, got {error.strerror}.") from error
