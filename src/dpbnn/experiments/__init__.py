"""The paper's tables and figures, and some beyond it, by one command: ``dpbnn reproduce``.

One file for each item, on public names of dpbnn. An item's jobs are done once, whatever interrupts; its results are a
JSON file; its picture and its section of the page are made of that file alone.
"""

from dpbnn.experiments import (
    accountants,
    accuracy,
    accuracy_by_epoch,
    calibration,
    comparison,
    confidence,
    convergence,
    factors,
    family,
    fashion,
    out_of_distribution,
    posterior_of_a_digit,
    regression,
    reliability,
    tuning,
)
from dpbnn.experiments.item import FULL, QUICK, Item, Size

__all__ = ["FULL", "ITEMS", "QUICK", "Item", "Size"]

ITEMS: dict[str, Item] = {
    module.ITEM.name: module.ITEM
    for module in (
        accuracy,
        calibration,
        confidence,
        reliability,
        posterior_of_a_digit,
        accuracy_by_epoch,
        family,
        factors,
        regression,
        comparison,
        accountants,
        convergence,
        fashion,
        out_of_distribution,
        tuning,
    )
}
"""All items, in the order of the page."""
