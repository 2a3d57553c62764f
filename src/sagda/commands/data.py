"""The commands that show data and lists of names: data, partition and list.

They train nothing. Their tables are in `report/terminal_data.py`.
"""

from pathlib import Path
from typing import Annotated

from sagda.commands.app import Json, Settings, flag, say
from sagda.runs.config import build


def list_(*, json: Json = False) -> int:
    """List available algorithms, problems, data sets, partitions, metrics and trackers.

    Example: `sagda list`
    """
    from sagda.report.terminal_data import catalogue, show_catalogue

    parts = catalogue()
    return say(json, parts, lambda: show_catalogue(parts))


def data(
    name: Annotated[str, flag("Name of a data set (see `sagda list`), or a file.")],
    /,
    *,
    label: Annotated[str, flag("Label column of a data file.", "data")] = "label",
    client_column: Annotated[
        str | None,
        flag("Column of a data file that names the client of each row.", "data"),
    ] = None,
    positive: Annotated[
        str | None, flag("Label of the positive class.", "data")
    ] = None,
    categorical: Annotated[
        str | None,
        flag(
            "Comma-separated numeric columns to treat as categories. Text columns "
            "always are.",
            "data",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Describe a data set or a file: rows, features, classes and clients.

    Examples: `sagda data a9a`, `sagda data hospital.csv --label outcome`
    """
    from sagda.report.terminal_data import data_facts, show_data
    from sagda.runs.experiment import load_options

    values = {"data": name, "label": label, "client_column": client_column}
    values |= {"positive": positive, "categorical": categorical}
    facts = data_facts(name, load_options(build(values)))
    return say(json, facts, lambda: show_data(facts))


def partition(
    *,
    settings: Settings = Settings(),
    picture: Annotated[
        Path | None,
        flag("Draw the split to this file: .png, .pdf, .svg or .html.", "output"),
    ] = None,
    json: Json = False,
) -> int:
    """Show how rows are split over clients: labels per client, and the split's hash.

    Example: `sagda partition --partition dirichlet --alpha 0.1 --clients 20`
    """
    from sagda.report.terminal_data import show_split, split_facts
    from sagda.runs.experiment import prepare, resolve
    from sagda.runs.output import label_counts

    federation = prepare(resolve(settings.merged(), settings.assignments)).federation
    counts = label_counts(federation)
    if picture is not None:
        from sagda.report.charts import split_chart, write_picture

        write_picture(split_chart(counts, federation.size.tolist()), picture)
    names = federation.names
    names = range(federation.clients) if names is None else names
    facts = split_facts(federation, counts, picture)
    return say(json, facts, lambda: show_split(facts, names))
