"""The main job, recorded: `tkcc optimize smollm2-135m`, exact rules, on this machine's CPU.

Run: python benchmarks/optimize_smollm2.py [budget, default 3m]
"""

from __future__ import annotations

import sys

import common

from tkcc.api import optimize
from tkcc.cli.common import seconds
from tkcc.optimize.records import Experiment, Observer


class Printer(Observer):
    def phase(self, text: str) -> None:
        print(text, flush=True)

    def experiment(self, experiment: Experiment, best: float) -> None:
        print(f"  {experiment.title:32s} {experiment.outcome} {experiment.speedup}", flush=True)


def main() -> None:
    budget = seconds(sys.argv[1] if len(sys.argv) > 1 else "3m")
    result = optimize("smollm2-135m", budget=budget, observer=Printer())
    common.save("optimize_smollm2", result.record())


if __name__ == "__main__":
    main()
