"""What a configuration can name: tasks, learners and encoders, each with the class that it stands for.

One that is added is a file of its own and a line here.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal

TASKS: Mapping[str, str] = {"market": "eigen_core.task.market:MarketTask"}
LEARNERS: Mapping[str, str] = {"ddpg": "eigen_core.learners.ddpg:DdpgLearner"}
ENCODERS: Mapping[str, str] = {
    "filter_bank": "eigen_core.networks.encoders.filter_bank:FilterBankEncoder",
    "tcn": "eigen_core.networks.encoders.tcn:TcnEncoder",
}

if TYPE_CHECKING:
    TaskName = str
    LearnerName = str
    EncoderName = str
else:
    TaskName = Literal[tuple(TASKS)]
    LearnerName = Literal[tuple(LEARNERS)]
    EncoderName = Literal[tuple(ENCODERS)]


def chosen(choices: Mapping[str, str], name: str) -> object:
    """Return the class that `name` stands for; its module is loaded now, since it may import torch."""
    module, _, found = choices[name].partition(":")
    value: object = getattr(import_module(module), found)
    return value
