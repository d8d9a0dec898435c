"""The public names and the modules that hold them; `dpbnn._lazy` imports each when it is first used."""

from dpbnn.methods.bbp import BBP as BBP
from dpbnn.methods.mc_dropout import MCDropout as MCDropout
from dpbnn.methods.method import Method as Method
from dpbnn.methods.method import Prepared as Prepared
from dpbnn.methods.registry import METHODS as METHODS
from dpbnn.methods.registry import MethodEntry as MethodEntry
from dpbnn.methods.sgd import SGD as SGD
from dpbnn.methods.sgld import SGLD as SGLD
from dpbnn.methods.store import KeepSamples as KeepSamples
from dpbnn.methods.store import KeepSummary as KeepSummary
