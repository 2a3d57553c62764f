"""Partitions: which client holds which rows. Every row is used at most once."""

from collections.abc import Callable

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.data.federation import Federation, Table
from sagda.keys import generator


def apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers adding up to `total`, nearest to `shares` (largest remainders)."""
    quota = total * shares / shares.sum()
    counts = np.floor(quota).astype(int)
    by_remainder = np.argsort(counts - quota, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def asked(table: Table, clients: int, samples: int | None) -> int:
    """How many rows a partition uses, after checking that they exist."""
    rows = len(table.label)
    check.integer("clients", clients, low=1, high=rows, what=", the rows there are")
    if samples is None:
        return rows
    check.integer("samples", samples, low=1)
    if clients * samples > rows:
        raise BadValue(
            f"`clients` x `samples` must be at most the {rows} rows there are, got "
            f"{clients} x {samples} = {clients * samples}; lower one of them."
        )
    return clients * samples


def iid(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """Rows dealt at random: `samples` to each client, or all as evenly as can be."""
    used = asked(table, clients, samples)
    order = generator(seed, "split").permutation(len(table.label))[:used]
    return Federation.of(table, order, apportion(used, np.ones(clients)))


def by_label(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """The paper's split: sorted by label and cut, so that every client has one class.

    Clients are given to classes in proportion to their rows; rows are drawn at random
    within a class, then sorted by the original class where labels were made binary.
    """
    asked(table, clients, samples)
    classes, counts = np.unique(table.label, return_counts=True)
    if clients < len(classes):
        raise BadValue(
            f"`clients` must be at least the {len(classes)} classes for one class per "
            f"client, got {clients}."
        )
    holders = np.maximum(apportion(clients, counts), 1)
    while holders.sum() > clients:  # a rare class got a client that others must give
        surplus = holders - clients * counts / counts.sum()
        holders[np.argmax(np.where(holders > 1, surplus, -np.inf))] -= 1
    rng, order, size = generator(seed, "split"), [], []
    for label, held, rows in zip(classes, holders, counts, strict=True):
        wanted = rows if samples is None else held * samples
        if wanted > rows:
            raise BadValue(
                f"`samples` must be at most {rows // held}: class {label:g} has {rows} "
                f"rows for {held} clients, got {samples}."
            )
        chosen = rng.permutation(np.flatnonzero(table.label == label))[:wanted]
        if table.origin is not None:
            chosen = chosen[np.argsort(table.origin[chosen], kind="stable")]
        order.append(chosen)
        size.append(apportion(wanted, np.ones(held)))
    return Federation.of(table, np.concatenate(order), np.concatenate(size))


def dirichlet(
    table: Table,
    *,
    clients: int,
    samples: int | None = None,
    alpha: float = 0.3,
    seed: int = 0,
) -> Federation:
    """Label skew by a Dirichlet distribution: the smaller `alpha`, the more skewed.

    With `samples`, each client draws its own mix of classes, Dirichlet around the
    overall one with weight `alpha` times the number of classes, and takes that many
    rows by it; a class that runs out leaves the mix. Without, each class is divided
    among the clients by one Dirichlet(`alpha`) draw, and sizes differ.
    """
    check.positive("alpha", alpha)
    used = asked(table, clients, samples)
    rng = generator(seed, "split")
    classes, counts = np.unique(table.label, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(table.label == c)) for c in classes]
    if samples is None:
        return _divide_classes(table, pools, clients, alpha, rng)

    left, order = counts.copy(), []
    mixes = rng.dirichlet(alpha * len(classes) * counts / counts.sum(), size=clients)
    for mix in mixes:
        taken = np.zeros(len(classes), int)
        while (short := samples - taken.sum()) > 0:
            # A tiny floor keeps a mix whose classes have all run out from being empty.
            open_mix = np.where(left > taken, mix + 1e-12, 0)
            wish = rng.multinomial(short, open_mix / open_mix.sum())
            taken = np.minimum(taken + wish, left)
        for c, number in enumerate(taken):
            at = counts[c] - left[c]
            order.append(pools[c][at : at + number])
        left -= taken
    assert sum(map(len, order)) == used
    return Federation.of(table, np.concatenate(order), np.full(clients, samples))


def _divide_classes(
    table: Table,
    pools: list[np.ndarray],
    clients: int,
    alpha: float,
    rng: np.random.Generator,
) -> Federation:
    for _ in range(100):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for pool in pools:
            counts = apportion(len(pool), rng.dirichlet(np.full(clients, alpha)))
            cuts = np.split(pool, np.cumsum(counts)[:-1])
            for held, cut in zip(parts, cuts, strict=True):
                held.append(cut)
        rows = [np.concatenate(held) for held in parts]
        size = np.array([len(held) for held in rows])
        if size.min() > 0:
            return Federation.of(table, np.concatenate(rows), size)
    raise BadValue(
        f"`alpha` = {alpha:g} leaves some of the {clients} clients without rows; raise "
        "it, lower `clients`, or give `samples`."
    )


def quantity(
    table: Table,
    *,
    clients: int,
    samples: int | None = None,
    alpha: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Unequal sizes, equal content: sizes by a Dirichlet(`alpha`) draw, at least 1.

    `samples` is the mean size; without it all rows are used.
    """
    check.positive("alpha", alpha)
    used = asked(table, clients, samples)
    rng = generator(seed, "split")
    order = rng.permutation(len(table.label))[:used]
    size = 1 + apportion(used - clients, rng.dirichlet(np.full(clients, alpha)))
    return Federation.of(table, order, size)


def by_column(
    table: Table,
    *,
    clients: int | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Federation:
    """The clients that the data name, in the order of their names.

    With `samples`, that many rows of each, drawn at random.
    """
    if table.client is None:
        raise BadValue(
            "partition `by-column` needs a client column; name it when you load the "
            "file, as in `sagda.load(path, client='site')`."
        )
    names, owner, counts = np.unique(
        table.client, return_inverse=True, return_counts=True
    )
    if clients is not None and clients != len(names):
        raise BadValue(
            f"`clients` must be left out or be {len(names)}, the clients in the data, "
            f"got {clients}."
        )
    rng = generator(seed, "split")
    if samples is not None:
        check.integer("samples", samples, low=1)
        if samples > counts.min():
            raise BadValue(
                f"`samples` must be at most {counts.min()}, the rows of client "
                f"{names[counts.argmin()]}, got {samples}."
            )
    rows = [np.flatnonzero(owner == i) for i in range(len(names))]
    if samples is not None:
        rows = [np.sort(rng.permutation(held)[:samples]) for held in rows]
    size = np.array([len(held) for held in rows])
    federation = Federation.of(table, np.concatenate(rows), size)
    return federation._replace(names=names)


PARTITIONS: dict[str, Callable[..., Federation]] = {
    "by-label": by_label,
    "iid": iid,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "by-column": by_column,
}


def partition(table: Table, scheme: str = "by-label", **options) -> Federation:
    """Split `table` over clients by the scheme of that name.

    Examples:
        >>> from sagda.data.datasets import load_digits
        >>> digits = load_digits(positive=1).train
        >>> partition(digits, "iid", clients=10, samples=20).size.tolist()
        [20, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    """
    check.kind("table", table, Table, "such as load(name).train")
    split = PARTITIONS[check.choice("partition", scheme, PARTITIONS)]
    check.keywords(f"partition {scheme}", split, options)
    return split(table, **options)
