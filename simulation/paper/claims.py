"""What the paper states of its experiments (accuracies in %), and what runs are called on the page."""

from __future__ import annotations

MISSING = "–"
LABELS = {
    "fedavg": "FedAvg, cyclic",
    "fedavg-shuffled": "FedAvg, shuffled",
    "mm-psgd": "MM-PSGD",
    "mc-psgd": "MC-PSGD",
    "separate-alone": "separate chain alone",
    "mm-snapshot": "MM-PSGD, decay 0: the block's last model",
    "mm-decay-0.9": "MM-PSGD, decay 0.9",
    "mm-mean": "MM-PSGD, running mean (Algorithm 1)",
    "fedavg-told": "FedAvg, told the block",
    "mm-psgd-told": "MM-PSGD, told the block",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedrep": "FedRep: a head a block",
    "ifca": "IFCA: a choice among M models",
}
# Runs that read figure 2's chains in another way.
ABLATIONS = ("mm-snapshot", "mm-decay-0.9", "mm-mean", "separate-alone")
# Runs of figure 2's setting whose model is told the block.
TOLD = ("fedavg-told", "mm-psgd-told")
FIGURE2 = {
    "fedavg": "does not converge, 56 to 59",
    "fedavg-shuffled": "best 62",
    "mm-psgd": "best 65",
    "mc-psgd": "best 65",
}
LOCAL_ITERATIONS = ("5", "10", "15", "20")
TABLE1 = {"mm-psgd": (3210, 2010, 1610, 1610), "mc-psgd": (3210, 2010, 1610, 1410)}
FIGURE4 = {
    ("fedavg", "2"): "best 61", ("fedavg", "5"): "56 to 59", ("fedavg", "10"): "53 to 57",
    ("mm-psgd", "2"): "best 63", ("mm-psgd", "5"): "best 65", ("mm-psgd", "10"): "best 67",
    ("mc-psgd", "2"): "best 64 to 65", ("mc-psgd", "5"): "best 64 to 65", ("mc-psgd", "10"): "best 64 to 65",
}  # fmt: skip
# Cyclic FedAvg by M, least and most; of M = 2 the paper gives the best alone.
FEDAVG = {2: (61, 61), 5: (56, 59), 10: (53, 57)}
FIGURE5 = {"mm-psgd": "60 to 61", "mc-psgd": "61 to 62", "fedavg": MISSING}
