"""Who is compared on real data: the algorithms and the controls, what each is called, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass

from perennial.server.report.drawing import DASHES, KNOWN, Style
from perennial.simulation.paper.plan import Part

SEEDS = (0, 1, 2, 3, 4)
PARTS = (Part("chicago", seeds=SEEDS), Part("flights", seeds=SEEDS))


@dataclass(frozen=True)
class Contender:
    """A run by its name. costs: what it needs beside what FedAvg does; needs: what must be known to predict."""

    run: str
    label: str
    costs: str
    needs: str
    style: Style


_TWICE = "twice the messages and steps, and votes"
_MODELS = "a model for each block on the server"
_BESIDE = f"{_MODELS}; trained here beside the mixed chain"
_GREEN, _ORANGE, _VIOLET = "#009E73", "#E69F00", "#5B4B9A"

CONTENDERS = (
    Contender("fedavg", "FedAvg", "–", "–", Style(KNOWN["fedavg"])),
    Contender("fedavg-mean", "FedAvg, average of its models over a cycle", "–", "–", Style("#222222", DASHES[2])),
    Contender("fedavg-shuffled", "FedAvg, shuffled", "devices keep all data", "–", Style("#222222", DASHES[1])),
    Contender("fedavg-tuned", "FedAvg, fine-tuned", "10 labelled steps on the device in each block", "the block",
              Style("#8C6D46")),
    Contender("told-block-fedavg", "FedAvg, told the block", "–", "the block", Style(_GREEN)),
    Contender("told-time-fedavg", "FedAvg, told the time", "–", "the time", Style(_VIOLET)),
    Contender("block-separate", "separate chain alone", _BESIDE, "the block", Style("#CC79A7")),
    Contender("mm-psgd", "MM-PSGD", _MODELS, "the block", Style(KNOWN["mm-psgd"])),
    Contender("mc-psgd", "MC-PSGD", _TWICE, "the block", Style(KNOWN["mc-psgd"], DASHES[1])),
    Contender("told-block-mm-psgd", "MM-PSGD, told the block", _MODELS, "the block", Style(_ORANGE)),
    Contender("told-block-mc-psgd", "MC-PSGD, told the block", _TWICE, "the block", Style(_ORANGE, DASHES[1])),
)  # fmt: skip
