"""Dictionary learning beside scikit-learn's DictionaryLearning and MiniBatchDictionaryLearning.

    python -m benchmarks.dictionary

docs/performance/representations.md says what is measured and how to read it.
"""

from __future__ import annotations

from benchmarks.compared import Chosen, Parts
from benchmarks.metric_part import Asked

PARTS = Parts(names=("digits", "sparse"), generated=("digits", "sparse"))


@PARTS.command("nothing: all data are generated, or scikit-learn's own", rounds=1)
def main(chosen: Chosen) -> None:
    """Compare objective and seconds."""
    chosen.measure("dictionary", Asked(chosen.rounds, chosen.memory), ("scikit-learn",))


if __name__ == "__main__":
    main()
