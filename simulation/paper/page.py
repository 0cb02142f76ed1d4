"""The pages of results: tables and sentences with numbers stand between markers, and only collecting writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from perennial.server.report.quantities import last_cycle
from perennial.simulation.paper import summary, tables
from perennial.simulation.paper.claims import FIGURE2
from perennial.simulation.paper.mix import Told
from perennial.simulation.paper.series import Series

# Figures that stand in a part of another name.
_PART_OF = {"figure3": "table1", "sensitivity": "sensitivity-labels"}


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with each part between its ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.

    The headline is the line that ends with ``<!-- headline -->``, since it must be the first.
    """
    for name, text in parts.items():
        if name == "headline":
            page = _replaced(page, r"^.*<!-- headline -->$", f"{text} <!-- headline -->")
        else:
            begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
            page = _replaced(page, rf"{re.escape(begin)}(?s:.*?){re.escape(end)}", f"{begin}\n{text}\n{end}")
    return page


def _replaced(page: str, pattern: str, text: str) -> str:
    # By a function, since a backslash in a replacing string would be read as an escape.
    return re.sub(pattern, lambda _: text, page, flags=re.MULTILINE)


def parts(found: tables.Found, told: Sequence[Told]) -> dict[str, str]:
    """Return every table of the pages by name, and the headline."""
    return {
        "headline": headline(found),
        "figure2": tables.figure2(found["figure2"]),
        "figure2-told": tables.told(found),
        "figure2-nine-labels": tables.figure2(found["figure2-nine-labels"]),
        "ablations": tables.ablations(found),
        "mix": tables.mix(told),
        "votes": tables.votes(found),
        "forgetting": tables.forgetting(found),
        "communication": tables.communication(found),
        "table1": tables.table1(found),
        "figure4": tables.figure4(found),
        "figure5": tables.figure5(found),
        "contradiction": tables.sensitivity(found, "contradiction", "rounds in a block, E"),
        "calibration-blocks": tables.calibration(found["calibration-blocks"], "block skew"),
        "calibration-labels": tables.calibration(found["calibration-labels"], "labels per block"),
        "sensitivity-labels": tables.sensitivity(found, "sensitivity-labels", "labels per block"),
        "sensitivity-skew": tables.sensitivity(found, "sensitivity-skew", "client skew"),
        "sensitivity-vote": tables.sensitivity(found, "sensitivity-vote", "examples behind a vote"),
        "neighbours": tables.neighbours(found),
    }


def states(found: tables.Found) -> dict[str, str]:
    """Return what each experiment's own runs are, as parts of the pages."""
    return {f"{name} state": state(series) for name, series in found.items()}


def illustrated(texts: Mapping[str, str], images: Mapping[str, str]) -> dict[str, str]:
    """Return the parts with their figures above them; ``images``: addresses of those drawn, by name."""
    shown = dict(texts)
    for name, address in images.items():
        part = _PART_OF.get(name, name)
        shown[part] = f"![{name}]({address})\n\n{shown[part]}"
    return shown


def headline(found: tables.Found) -> str:
    """Return the findings of figure 2, or how far it is."""
    hard = found["figure2-nine-labels"]
    text = f"**{finding(found['figure2'])}**"
    return (
        f"{text} Read to the letter, with blocks that lack one of the 10 labels: {_lowered(finding(hard))}"
        if hard
        else text
    )


def finding(series: Sequence[Series]) -> str:
    """Return whether the paper's order holds in runs of figure 2."""
    runs = {name: summary.of_run(series, name) for name in FIGURE2}
    if not all(runs.values()):
        missing = ", ".join(name for name in FIGURE2 if not runs[name])
        return f"Figure 2 still lacks {missing}."
    # Runs that are not at their end are compared as of the round that all have reached.
    common = min(one.last_round for found in runs.values() for one in found)
    ours, mc, shuffled, cyclic = (
        100 * fmean(last_cycle(one.until(common).evaluated).mean for one in runs[name])
        for name in ("mm-psgd", "mc-psgd", "fedavg-shuffled", "fedavg")
    )
    holds = "holds" if min(ours, mc) > shuffled > cyclic else "does not hold"
    whole = all(one.whole for found in runs.values() for one in found)
    partial = "" if whole else f" (partial so far, at round {common:,})"
    seeds = "one seed" if (count := min(len(found) for found in runs.values())) == 1 else f"{count} seeds"
    return (
        f"The paper's order {holds}{partial}: over the last cycle MM-PSGD has {ours:.1f} %, MC-PSGD {mc:.1f} %, "
        f"shuffled FedAvg {shuffled:.1f} %, cyclic FedAvg {cyclic:.1f} % ({seeds}); "
        f"a predictor for each block is {ours - cyclic:.1f} points above cyclic FedAvg."
    )


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:]


def state(series: Sequence[Series]) -> str:
    """Return one line on what an experiment's numbers rest on: seeds, rounds, time; or how far it is."""
    if not series:
        return "*Not run yet.*"
    seeds = ", ".join(str(seed) for seed in sorted({one.seed for one in series}))
    hours = summary.training_seconds(series) / 3600
    runs = len({one.run for one in series})
    text = f"{runs} run{'s' if runs > 1 else ''}, seed{'s' if ',' in seeds else ''} {seeds}, {_time(hours)} of training"
    broken = [one for one in series if not one.whole]
    if not broken:
        return f"*{text}.*"
    first = min(broken, key=lambda one: one.last_round)
    return (
        f"*Partial: {text} so far; {len(broken)} of {len(series)} series are not at their end "
        f"({first.run}, seed {first.seed}: round {first.last_round:,} of {first.planned:,}).*"
    )


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
