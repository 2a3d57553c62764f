"""Partitions: ways to split a table over clients. Every row is used at most once.

To add a partition, write one function and one line in `PARTITIONS`. The keywords of the
function are the options of `sagda.partition` and of the command. Data that are already
split into one file per client need `by_column`; see also `readers.py`.
"""

from collections.abc import Callable

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.data.federation import Federation, Table
from sagda.keys import generator


def apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Return integers in proportion to `shares` that add up to `total`.

    Rounding uses the method of largest remainders.
    """
    quota = total * shares / shares.sum()
    counts = np.floor(quota).astype(int)
    by_remainder = np.argsort(counts - quota, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def asked(table: Table, clients: int, samples: int | None) -> int:
    """Return the number of rows that a partition uses.

    Raise `BadValue` if the table has fewer rows.
    """
    rows = len(table.label)
    check.integer("clients", clients, low=1, high=rows, what=", the number of rows")
    if samples is None:
        return rows
    check.integer("samples", samples, low=1)
    if clients * samples > rows:
        raise BadValue(
            f"`clients` x `samples` must be at most {rows}, the number of rows, got "
            f"{clients} x {samples} = {clients * samples}; lower one of them."
        )
    return clients * samples


def parted(table: Table, parts: list[np.ndarray]) -> Federation:
    """Return the federation whose client i has the rows with numbers `parts[i]`."""
    size = np.array([len(part) for part in parts])
    return Federation.of(table, np.concatenate(parts), size)


def iid(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """Split rows at random: `samples` rows per client, or all rows in equal parts."""
    used = asked(table, clients, samples)
    order = generator(seed, "split").permutation(len(table.label))[:used]
    return parted(table, np.array_split(order, clients))


def by_label(
    table: Table, *, clients: int, samples: int | None = None, seed: int = 0
) -> Federation:
    """Split rows by label, so that every client has one class, as in the paper.

    The number of clients of a class is proportional to its number of rows. The rows of
    a client are drawn at random from its class. If labels were made binary, the rows of
    a class are sorted by their original class before they are divided among clients.
    """
    asked(table, clients, samples)
    classes, counts = np.unique(table.label, return_counts=True)
    if clients < len(classes):
        raise BadValue(
            f"`clients` must be at least {len(classes)}, the number of classes, so "
            f"that each client has one class, got {clients}."
        )
    holders = np.maximum(apportion(clients, counts), 1)
    # The maximum with 1 may have added clients for rare classes. Take clients away from
    # the classes that have most above their share.
    while holders.sum() > clients:
        surplus = holders - clients * counts / counts.sum()
        holders[np.argmax(np.where(holders > 1, surplus, -np.inf))] -= 1
    rng, parts = generator(seed, "split"), []
    for label, share, rows in zip(classes, holders, counts, strict=True):
        wanted = rows if samples is None else share * samples
        if wanted > rows:
            raise BadValue(
                f"`samples` must be at most {rows // share}, because class {label:g} "
                f"has {rows} rows for {share} clients, got {samples}."
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
    """Split rows with Dirichlet label skew. A smaller `alpha` gives more skew.

    With `samples`, every client has `samples` rows. The shares of the classes at each
    client are drawn from a Dirichlet distribution around the overall shares. Its
    concentration is `alpha` times the number of classes. When a class has no rows left,
    clients draw from the other classes.

    Without `samples`, all rows are used and clients have different sizes. The shares of
    the clients in each class are one draw from Dirichlet(`alpha`).
    """
    check.positive("alpha", alpha)
    asked(table, clients, samples)
    rng = generator(seed, "split")
    classes, counts = np.unique(table.label, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(table.label == c)) for c in classes]
    if samples is None:
        return _divide_classes(table, pools, clients, alpha, rng)

    left, order = counts.copy(), []  # left: rows of each class that no client has yet
    mixes = rng.dirichlet(alpha * len(classes) * counts / counts.sum(), size=clients)
    for mix in mixes:
        taken = np.zeros(len(classes), int)
        while (short := samples - taken.sum()) > 0:
            # 1e-12 avoids a division by zero if all classes in the mix have run out.
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
        cuts = []  # cuts[class][client] holds row numbers
        for pool in pools:
            counts = apportion(len(pool), rng.dirichlet(np.full(clients, alpha)))
            cuts.append(np.split(pool, np.cumsum(counts)[:-1]))
        rows = [np.concatenate(part) for part in zip(*cuts, strict=True)]
        if min(map(len, rows)) > 0:
            return parted(table, rows)
    raise BadValue(
        f"`alpha` must be large enough that all {clients} clients get rows, got "
        f"{alpha:g}; raise `alpha`, lower `clients`, or give `samples`."
    )


def quantity(
    table: Table,
    *,
    clients: int,
    samples: int | None = None,
    alpha: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Split rows at random into clients of different sizes.

    The sizes are at least 1, and proportional to one draw from Dirichlet(`alpha`).
    `samples` is the mean size. Without `samples`, all rows are used.
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
    """Split rows by the client column of the data, in the order of the names.

    Each client gets all of its rows, or `samples` random ones.
    """
    if table.client is None:
        raise BadValue(
            "`table` must have a client column for partition by-column, got none; use "
            "`sagda.load(path, client='site')`."
        )
    names, owner, counts = np.unique(
        table.client, return_inverse=True, return_counts=True
    )
    if clients is not None and clients != len(names):
        raise BadValue(
            f"`clients` must be left out or be {len(names)}, the number of clients in "
            f"the data, got {clients}."
        )
    rows = [np.flatnonzero(owner == i) for i in range(len(names))]
    if samples is not None:
        check.integer("samples", samples, low=1)
        if samples > counts.min():
            raise BadValue(
                f"`samples` must be at most {counts.min()}, the number of rows of "
                f"client {names[counts.argmin()]}, got {samples}."
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
    """Split `table` over clients. `scheme` is a key of `PARTITIONS`.

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
