"""The commands that use a trained model: predict and evaluate.

They do not train. `scoring/` computes the scores and evaluates them.
"""

import csv
import io
import sys
from pathlib import Path
from typing import Annotated

from sagda.commands.app import Folder, Json, OwnModel, flag, say, start_jax

Algorithm = Annotated[
    str | None,
    flag("Use the model of this algorithm. Needed if several were compared."),
]
Seed = Annotated[
    int | None, flag("Use the model of this seed (default: the first seed).")
]
Rows = Annotated[
    Path, flag("File with rows (.csv, .parquet, .npz or LIBSVM), or a folder.")
]


def predict(
    folder: Folder,
    file: Rows,
    /,
    *,
    out: Annotated[
        Path | None, flag("File to write (default: print to the terminal).", "output")
    ] = None,
    algorithm: Algorithm = None,
    seed: Seed = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Score the rows of a file with a trained model.

    Writes one line per row: the score of the row, and its probability of the positive
    class. The file needs no label column.

    Example: `sagda predict runs/mine new.csv --out scores.csv`
    """
    from sagda import durable

    start_jax()
    from sagda.scoring.scorer import Scorer

    scorer = Scorer.load(folder, algorithm, seed, model)
    scores = scorer.predict(file)
    probabilities = scorer.probabilities(scores)
    if json and out is None:
        facts = {"model": scorer.name, "positive": scorer.positive}
        facts |= {"scores": scores.tolist(), "probabilities": probabilities.tolist()}
        return say(json, facts, "")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "score", "probability"])
    for i, (score, chance) in enumerate(zip(scores, probabilities, strict=True)):
        writer.writerow([i, repr(float(score)), repr(float(chance))])
    if out is None:
        sys.stdout.write(text.getvalue())
        return 0
    durable.write(out, text.getvalue())
    facts = {"model": scorer.name, "rows": len(scores), "out": str(out)}
    return say(json, facts, f"{len(scores)} rows scored: {out}")


def evaluate(
    folder: Folder,
    file: Rows,
    /,
    *,
    label: Annotated[
        str | None, flag("Label column (default: the one of training).", "data")
    ] = None,
    client_column: Annotated[
        str | None,
        flag(
            "Column that names the client of each row. Adds an AUC for each client.",
            "data",
        ),
    ] = None,
    algorithm: Algorithm = None,
    seed: Seed = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Evaluate a trained model on labelled rows.

    Prints the AUC of all rows with a bootstrap interval, the AUC of every client that
    has both classes, and the calibration error. Writes evaluation.html with ROC and
    precision-recall curves. Adds the numbers to the model card.

    Example: `sagda evaluate runs/mine held-out.csv --client-column hospital`
    """
    start_jax()
    from sagda.report.evaluation_page import write_evaluation
    from sagda.report.terminal import show_evaluation
    from sagda.scoring.evaluation import evaluate as evaluate_scores
    from sagda.scoring.scorer import Scorer

    scorer = Scorer.load(folder, algorithm, seed, model)
    table = scorer.labelled(file, label, client_column)
    scores = scorer.scores(table)
    evaluation = evaluate_scores(
        scores, scorer.probabilities(scores), table.label, table.client
    )
    files = write_evaluation(folder, file, scorer.name, evaluation)
    facts = {"model": scorer.name} | evaluation.as_json()
    return say(json, facts, lambda: show_evaluation(evaluation, files))
