"""Train and store the classifiers of `sagda.problems.gan`, on digits and on MNIST.

    SAGDA_DATA_DIR=... python scripts/train_judges.py

The script needs the files of MNIST. The files that it writes belong to the package.
"""

import warnings
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

import sagda

OUT = Path(__file__).parents[1] / "src" / "sagda" / "data" / "embedded"


def main() -> None:
    warnings.simplefilter("ignore")  # the small number of passes is intended
    for name, passes in (("digits", 300), ("mnist", 30)):
        data = sagda.load(name)
        assert data.test
        model = MLPClassifier((64,), alpha=1e-3, max_iter=passes, random_state=0)
        model.fit(data.train.features, data.train.label.astype(int))
        # Half precision is accurate enough and makes the files half as large.
        half = lambda array: array.astype(np.float16)
        for weights in (model.coefs_, model.intercepts_):
            weights[:] = [half(array) for array in weights]
        (first, second), (first_bias, second_bias) = model.coefs_, model.intercepts_
        accuracy = model.score(data.test.features, data.test.label.astype(int))
        np.savez_compressed(
            OUT / f"judge-{name}.npz",
            first=first,
            first_bias=first_bias,
            second=second,
            second_bias=second_bias,
            accuracy=np.float64(accuracy),
        )
        print(f"{name}: {accuracy:.4f} of {len(data.test.label)} test rows")


if __name__ == "__main__":
    main()
