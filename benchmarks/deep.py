"""DeepFM on servers beside the same model in PyTorch, in one process with two threads.

    TORCH_PYTHON=/path/of/a/python/with/torch python -m benchmarks.deep --data-dir FOLDER

The folder has frappe.validation.libfm and frappe.test.libfm (hexiangnan/neural_factorization_machine), and
ml-1m.ratings.txt.gz (lines ``user item rating``). docs/performance/deep.md says what is measured and how to read it.
"""

from __future__ import annotations

from benchmarks.compared import Chosen, Parts
from benchmarks.deep_part import Asked

PARTS = Parts(names=("frappe", "movielens"), generated=())


@PARTS.command("frappe.*.libfm and ml-1m.ratings.txt.gz", rounds=3)
def main(chosen: Chosen) -> None:
    """Compare AUC of test rows, and rows a second."""
    chosen.measure("deep", Asked(chosen.data_dir, chosen.rounds, chosen.memory), ())


if __name__ == "__main__":
    main()
