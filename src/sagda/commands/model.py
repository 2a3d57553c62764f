"""Commands for a trained model: predict and evaluate."""

import csv
import io
import json as json_module
import sys
from pathlib import Path
from typing import Annotated

from sagda.commands import app as base
from sagda.commands.app import Folder, Json, OwnModel, app, said

Algorithm = Annotated[str | None, said("Which model, where several were compared.")]
Seed = Annotated[int | None, said("Which seed's, where there were several.")]
Rows = Annotated[Path, said("Rows: .csv, .parquet, .npz, LIBSVM, or a folder.")]


@app.command
def predict(
    folder: Folder,
    file: Rows,
    /,
    *,
    out: Annotated[Path | None, said("Where to write (default: the terminal).")] = None,
    algorithm: Algorithm = None,
    seed: Seed = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Score the rows of a file with a trained model.

    Writes one line a row: its score, and the probability of the positive class. A
    label column is not needed.

    Example: `sagda predict runs/mine new.csv --out scores.csv`
    """
    from sagda import durable

    base.start_jax()
    from sagda.scoring.scorer import Scorer

    scorer = Scorer.load(folder, algorithm, seed, model)
    scores = scorer.predict(file)
    probability = scorer.probabilities(scores)
    if json and out is None:
        facts = {"model": scorer.name, "positive": scorer.positive}
        facts |= {"scores": scores.tolist(), "probabilities": probability.tolist()}
        print(json_module.dumps(facts))
        return 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "score", "probability"])
    for i, (score, chance) in enumerate(zip(scores, probability, strict=True)):
        writer.writerow([i, repr(float(score)), repr(float(chance))])
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        durable.write(out, text.getvalue())
        said = {"model": scorer.name, "rows": len(scores), "out": str(out)}
        plain = f"{len(scores)} rows scored: {out}"
        print(json_module.dumps(said) if json else plain)
    return 0


@app.command
def evaluate(
    folder: Folder,
    file: Rows,
    /,
    *,
    label: Annotated[
        str | None, said("The label column (default: as in training).")
    ] = None,
    client_column: Annotated[
        str | None, said("The column that says who holds a row, for AUCs by client.")
    ] = None,
    algorithm: Algorithm = None,
    seed: Seed = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Judge a trained model on labelled rows.

    The AUC of all rows with a bootstrap interval, that of every client that has both
    classes, the worst of them, calibration; ROC and precision-recall curves are drawn
    in evaluation.html, and the model card is written again.

    Example: `sagda evaluate runs/mine held-out.csv --client-column hospital`
    """
    base.start_jax()
    from sagda.report.evaluation_page import write_evaluation
    from sagda.report.terminal import show_evaluation
    from sagda.scoring.evaluation import evaluate as judged
    from sagda.scoring.scorer import Scorer

    scorer = Scorer.load(folder, algorithm, seed, model)
    table = scorer.labelled(file, label, client_column)
    scores = scorer.scores(table)
    found = judged(scores, scorer.probabilities(scores), table.label, table.client)
    made = write_evaluation(folder, file, scorer.name, found)
    if json:
        print(json_module.dumps({"model": scorer.name} | found.as_json()))
        return 0
    show_evaluation(found, made)
    return 0
