"""Partitions: splits of a table over clients. Every row is used at most once.

A new partition is one function and one line in `PARTITIONS`. Its keywords are what
`sagda.partition` and the command take.
"""

from collections.abc import Callable

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.data.federation import Federation, Table
from sagda.keys import generator


def apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Integers that add up to `total`, nearest to `shares` (largest remainders)."""
    quota = total * shares / shares.sum()
    counts = np.floor(quota).astype(int)
    by_remainder = np.argsort(counts - quota, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def asked(table: Table, clients: int, samples: int | None) -> int:
    """The number of rows a partition uses, after checking that they exist."""
    rows = len(table.label)
    check.integer("clients", clients, low=1, high=rows, what=", the rows of the table")
    if samples is None:
        return rows
    check.integer("samples", samples, low=1)
    if clients * samples > rows:
        raise BadValue(
            f"`clients` x `samples` must be at most the {rows} rows there are, got "
            f"{clients} x {samples} = {clients * samples}; lower one of them."
        )
    return clients * samples


def parted(table: Table, parts: list[np.ndarray]) -> Federation:
    """The federation whose client i holds the rows with the numbers `parts[i]`."""
    size = np.array([len(part) for part in parts])
    return Federation.of(table, np.concatenate(parts), size)


def iid(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """Rows at random: `samples` for each client, or all in equal parts."""
    used = asked(table, clients, samples)
    order = generator(seed, "split").permutation(len(table.label))[:used]
    return parted(table, np.array_split(order, clients))


def by_label(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """The paper's split: sorted by label and cut, so that every client has one class.

    Each class gets clients in proportion to its rows. Rows are drawn at random within
    a class. If labels were made binary, they are then sorted by their original class.
    """
    asked(table, clients, samples)
    classes, counts = np.unique(table.label, return_counts=True)
    if clients < len(classes):
        raise BadValue(
            f"`clients` must be at least the {len(classes)} classes for one class per "
            f"client, got {clients}."
        )
    holders = np.maximum(apportion(clients, counts), 1)
    # A rare class got one client more than its share; others give one back.
    while holders.sum() > clients:
        surplus = holders - clients * counts / counts.sum()
        holders[np.argmax(np.where(holders > 1, surplus, -np.inf))] -= 1
    rng, parts = generator(seed, "split"), []
    for label, share, rows in zip(classes, holders, counts, strict=True):
        wanted = rows if samples is None else share * samples
        if wanted > rows:
            raise BadValue(
                f"`samples` must be at most {rows // share}: class {label:g} has "
                f"{rows} rows for {share} clients, got {samples}."
            )
        chosen = rng.permutation(np.flatnonzero(table.label == label))[:wanted]
        if table.origin is not None:
            chosen = chosen[np.argsort(table.origin[chosen], kind="stable")]
        parts += np.array_split(chosen, share)
    return parted(table, parts)


def dirichlet(
    table: Table,
    *,
    clients: int,
    samples: int | None = None,
    alpha: float = 0.3,
    seed: int = 0,
) -> Federation:
    """Label skew by a Dirichlet distribution; a smaller `alpha` means more skew.

    With `samples`, all clients have that many rows. For each client a mix of classes is
    drawn: Dirichlet around the overall mix, with weight `alpha` times the number of
    classes. A class without rows left drops out of the mix.

    Without `samples`, all rows are used and sizes differ. Each class is divided among
    the clients by one Dirichlet(`alpha`) draw.
    """
    check.positive("alpha", alpha)
    asked(table, clients, samples)
    rng = generator(seed, "split")
    classes, counts = np.unique(table.label, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(table.label == c)) for c in classes]
    if samples is None:
        return _divide_classes(table, pools, clients, alpha, rng)

    left, order = counts.copy(), []  # rows of each class that no client has yet
    mixes = rng.dirichlet(alpha * len(classes) * counts / counts.sum(), size=clients)
    for mix in mixes:
        taken = np.zeros(len(classes), int)
        while (short := samples - taken.sum()) > 0:
            # The floor matters if all classes of a mix have run out.
            open_mix = np.where(left > taken, mix + 1e-12, 0)
            wish = rng.multinomial(short, open_mix / open_mix.sum())
            taken = np.minimum(taken + wish, left)
        for pool, first, number in zip(pools, counts - left, taken, strict=True):
            order.append(pool[first : first + number])
        left -= taken
    return Federation.of(table, np.concatenate(order), np.full(clients, samples))


def _divide_classes(
    table: Table,
    pools: list[np.ndarray],
    clients: int,
    alpha: float,
    rng: np.random.Generator,
) -> Federation:
    for _ in range(100):
        cuts = []  # [classes][clients], row numbers
        for pool in pools:
            counts = apportion(len(pool), rng.dirichlet(np.full(clients, alpha)))
            cuts.append(np.split(pool, np.cumsum(counts)[:-1]))
        rows = [np.concatenate(part) for part in zip(*cuts, strict=True)]
        if min(map(len, rows)) > 0:
            return parted(table, rows)
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
    """Clients of unequal size with the same mix of classes.

    Sizes come from one Dirichlet(`alpha`) draw, at least 1. `samples` is the mean size;
    without it all rows are used.
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
    """The clients named in the data, in the order of their names.

    Each client gets all of its rows, or `samples` of them drawn at random.
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
    rows = [np.flatnonzero(owner == i) for i in range(len(names))]
    if samples is not None:
        check.integer("samples", samples, low=1)
        if samples > counts.min():
            raise BadValue(
                f"`samples` must be at most {counts.min()}, the rows of client "
                f"{names[counts.argmin()]}, got {samples}."
            )
        rng = generator(seed, "split")
        rows = [np.sort(rng.permutation(part)[:samples]) for part in rows]
    return parted(table, rows)._replace(names=names)


PARTITIONS: dict[str, Callable[..., Federation]] = {
    "by-label": by_label,
    "iid": iid,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "by-column": by_column,
}


def partition(table: Table, scheme: str = "by-label", **options) -> Federation:
    """Split `table` over clients by the named scheme.

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
