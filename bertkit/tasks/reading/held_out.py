"""Chooses the examples that `dev_share` holds out.

Each label keeps its share, and a label of two examples has one on both sides; numbers are divided at their quantiles. Near-duplicates
stay on one side, unless their group is larger than a tenth of what is held out. As scikit-learn's StratifiedGroupKFold does, groups are
taken one after another, in an order that the seed gives, wherever there is room.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.reading.near_duplicates import MIN_SHARE, MIN_SHINGLES, Content, NearDuplicates, shingled

NUM_QUANTILES = 10  # of numbers; fewer if fewer examples are held out
STRATIFIED = "stratified, near-duplicates by representatives"  # how examples are held out, in the identity of a run
TOGETHER = "near-duplicates together"  # in runs of version 0.2; those of version 0.1 have no name for theirs
Labels = Sequence[Hashable]  # of an example


def num_wanted(num_examples: int, share: float) -> int:
    """Return how many examples to hold out: one at least, and not all."""
    return min(max(1, round(share * num_examples)), num_examples - 1)


def stratified(contents: Sequence[Content], labels: Sequence[Labels], share: float, seed: int) -> NDArray[np.bool_]:
    """Return which examples are held out."""
    wanted = num_wanted(len(contents), share)
    keys = [
        hashlib.blake2b(f"{seed} {content!r}".encode("utf-8", "surrogatepass"), digest_size=8) for content in contents
    ]
    order = np.argsort([int.from_bytes(key.digest()) for key in keys], kind="stable").tolist()
    return _Choice(_units(NearDuplicates.of(contents), order, wanted), _classes(labels, wanted), wanted, share).made()


def _classes(labels: Sequence[Labels], wanted: int) -> list[set[Hashable]]:
    """Return the labels of each example, where numbers are replaced by the quantiles between which they are."""
    numbers = [label for own in labels for label in own if isinstance(label, float)]
    borders = np.quantile(numbers or [0.0], np.linspace(0, 1, min(NUM_QUANTILES, wanted) + 1)[1:-1])

    def class_of(label: Hashable) -> Hashable:
        return int(np.searchsorted(borders, label)) if isinstance(label, float) else label

    return [{class_of(label) for label in own if label is not None} for own in labels]


def _units(near: NearDuplicates, order: Sequence[int], wanted: int) -> list[list[int]]:
    """Return the examples that stay together: chains of near-duplicates, or else stars, that are no larger than a tenth of what is held out, or pairs."""
    most = max(wanted // 10, 2 if wanted >= 5 else 1)
    chains, stars = near.chains(), near.stars()
    units = np.arange(len(chains)) + 2 * len(chains)
    for groups, first in ((stars, len(chains)), (chains, 0)):
        is_small = np.bincount(groups)[groups] <= most
        units[is_small] = groups[is_small] + first
    members = defaultdict[int, list[int]](list)
    for place in order:
        members[int(units[place])].append(place)
    return list(members.values())


class _Choice:
    """Units of examples, of which some are held out."""

    def __init__(self, units: list[list[int]], classes: Sequence[set[Hashable]], wanted: int, share: float) -> None:
        self.units, self.classes, self.wanted = units, classes, wanted
        sizes = Counter(label for own in classes for label in own)
        self.parted = [label for label, size in sorted(sizes.items(), key=lambda item: item[1]) if size > 1]
        self.shares = {label: max(1, round(share * sizes[label])) for label in self.parted}
        self.rest = {label: size - 1 for label, size in sizes.items()}  # so that the other side has each label, too
        self.any = {label: max(1, number) for label, number in self.rest.items()}
        self.is_held, self.held, self.num_held = [False] * len(classes), Counter[Hashable](), 0

    def made(self) -> NDArray[np.bool_]:
        """Hold out an example of each label; then units, while there is room for them, by ever weaker rules."""
        units_of = defaultdict[Hashable, list[list[int]]](list)
        for unit in self.units:
            for label in set[Hashable]().union(*(self.classes[place] for place in unit)):
                units_of[label].append(unit)
        for missing, label in zip(range(len(self.parted) - 1, -1, -1), self.parted, strict=True):
            if not self.held[label]:
                self._hold_one(label, units_of[label], max(1, self.wanted - self.num_held - missing))
        for most in (self.shares, self.rest, self.any):
            for unit in self.units:
                if self.num_held + len(unit) <= self.wanted and self._fits(unit, most):
                    self._hold(unit)
        return np.array(self.is_held)

    def _hold_one(self, label: Hashable, units: Sequence[list[int]], room: int) -> None:
        """Hold out a unit with the label; without room for one, an example of it."""
        alone = [[place] for unit in units for place in unit if label in self.classes[place]]
        small = [unit for unit in units if len(unit) <= room]
        fitting = (unit for most in (self.rest, self.any) for unit in (*small, *alone) if self._fits(unit, most))
        self._hold(next(fitting, []))

    def _fits(self, unit: Sequence[int], most: Mapping[Hashable, int]) -> bool:
        """Whether a unit can be held out, with at most so many examples of each label."""
        if any(self.is_held[place] for place in unit):
            return False
        own = Counter(label for place in unit for label in self.classes[place])
        return all(self.held[label] + count <= most.get(label, 0) for label, count in own.items())

    def _hold(self, unit: Sequence[int]) -> None:
        for place in unit:
            self.is_held[place] = True
            self.held.update(self.classes[place])
        self.num_held += len(unit)


def by_hash(contents: Sequence[Content], share: float, method: str | None) -> NDArray[np.bool_]:
    """Return which examples are held out in runs that earlier versions began: by a hash of their texts.

    By `TOGETHER` near-duplicates, and their near-duplicates, are on one side; without a method only equal texts are.
    """
    texts = [repr(content) for content in contents]
    groups: list[Hashable] = [*_linked(contents).tolist()] if method == TOGETHER else [*texts]
    smallest = dict(sorted(zip(groups, texts, strict=True), key=lambda pair: pair[1], reverse=True))  # last wins

    def number(group: Hashable) -> float:
        content = smallest[group].encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64

    return np.array([number(group) < share for group in groups])


def _linked(contents: Sequence[Content]) -> NDArray[np.int64]:
    """Return a group number for each text; a text is compared with the 2 longest texts that share its 3 rarest shingles."""
    from scipy import sparse

    has, distinct = shingled(contents)  # the longest text first
    lengths = np.diff(has.indptr)
    rows, columns, counts = np.repeat(np.arange(len(lengths)), lengths), has.indices, np.bincount(has.indices)
    is_sign = (counts[columns] > 1) & (counts[columns] <= 64) & (lengths[rows] >= MIN_SHINGLES)
    rows, columns = rows[is_sign], columns[is_sign]
    by_rarity = np.lexsort((columns, counts[columns], rows))
    by_rarity = by_rarity[np.arange(len(rows)) - np.searchsorted(rows, rows) < 3]
    rows, columns, by_column = rows[by_rarity], columns[by_rarity], has.tocsc()
    others = [by_column.indices[by_column.indptr[columns] + place] for place in range(2)]
    size = max(len(lengths), 1)
    long, short = np.divmod(np.unique(np.minimum(rows, others) * size + np.maximum(rows, others)), size)
    shared = has[short].multiply(has[long]).sum(axis=1)
    is_near = (lengths[short] >= MIN_SHINGLES) & (shared >= MIN_SHARE * lengths[short])
    graph = sparse.coo_array((np.ones(int(is_near.sum())), (short[is_near], long[is_near])), shape=(len(lengths),) * 2)
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)[distinct]
