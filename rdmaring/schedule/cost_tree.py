"""Closed forms of the algorithms with about log2(N) steps: tree, binomial, halving, doubling."""

from __future__ import annotations

from rdmaring.schedule.cost_model import Leg, Model
from rdmaring.schedule.cost_ring import Time


def rounds(ranks: int) -> int:
    """The least k with 2^k >= ranks."""
    return (ranks - 1).bit_length()


def _is_far(model: Model, distance: int) -> bool:
    """Ranks so far apart are on different nodes, or those that are decide the time."""
    shape = model.shape
    return shape.nodes > 1 and (distance >= shape.largest or shape.largest == 1)


def _exchange(model: Model, nbytes: float, distance: int, adds: int) -> Leg:
    return model.leg(_is_far(model, distance), nbytes, adds=adds, onward=True, senders=model.shape.largest)


def _folds(model: Model, nbytes: float) -> tuple[float, float]:
    """Before and after, for ranks beyond a power of two: critical time, work."""
    ranks = model.shape.ranks
    if ranks == 1 << (ranks.bit_length() - 1):
        return 0.0, 0.0
    there, back = _exchange(model, nbytes, 1, 1), _exchange(model, nbytes, 1, 0)
    work = sum(leg.slices * leg.work + leg.row for leg in (there, back))
    return there.alone + back.alone, work


def _halvings(model: Model, nbytes: float, adds: tuple[int, ...]) -> Time:
    """Exchanges of 1/2, 1/4, ... of the vector at distances 1, 2, ...; each kind of step once a distance."""
    ranks = model.shape.ranks
    critical, work = _folds(model, nbytes)
    critical += model.start(_is_far(model, 1), nbytes / 2)
    for level in range(ranks.bit_length() - 1):
        for each in adds:
            leg = _exchange(model, nbytes / 2 ** (level + 1), 1 << level, each)
            critical += leg.alone
            work += leg.slices * leg.work + leg.row
    return Time(critical, model.shape.largest * work)


def halving_all_reduce(model: Model, nbytes: float) -> Time:
    """Recursive halving, then doubling."""
    return _halvings(model, nbytes, (1, 0))


def halving_reduce_scatter(model: Model, nbytes: float) -> Time:
    """Recursive halving."""
    return _halvings(model, nbytes, (1,))


def doubling_all_gather(model: Model, nbytes: float) -> Time:
    """Recursive doubling."""
    return _halvings(model, nbytes, (0,))


def _depths(model: Model, height: int) -> tuple[int, int]:
    """Of the hops down a tree over ranks in order, how many are in a node and how many between nodes."""
    far = min(height, rounds(model.shape.nodes))
    return height - far, far


def _tree(model: Model, nbytes: float, adds: tuple[int, ...], trees: int) -> Time:
    """Passes up (adds) or down each of the trees, pipelined by slice: every rank has two children at most."""
    ranks = model.shape.ranks
    height = max(1, ranks.bit_length() - 1)
    part = nbytes / trees
    near, far = _depths(model, height)
    critical, work, port = model.start(bool(far and not near), part), 0.0, 0.0
    slices = 1
    for each in adds:
        stage = [
            (model.leg(level, part, adds=2 * each), count) for level, count in ((False, near), (True, far)) if count
        ]
        critical += sum(count * (leg.hop + leg.wire) for leg, count in stage)
        work += max(leg.work for leg, _ in stage) * 2
        port += max(leg.port for leg, _ in stage) * 2
        slices = stage[0][0].slices
    critical += (slices - 1) * max(work * (1 if trees == 2 else 0.5), port)
    return Time(critical, model.shape.largest * slices * work * (trees / 2))


def tree_all_reduce(model: Model, nbytes: float) -> Time:
    """Up and down two trees, half the vector each; who is inside one is a leaf of the other."""
    return _tree(model, nbytes, (1, 0), 2)


def tree_broadcast(model: Model, nbytes: float) -> Time:
    """Down two trees."""
    return _tree(model, nbytes, (0,), 2)


def tree_reduce(model: Model, nbytes: float) -> Time:
    """Up two trees."""
    return _tree(model, nbytes, (1,), 2)


def _binomial(model: Model, nbytes: float, adds: int) -> Time:
    """The root has log2(N) children, and each of them one less: the vector, pipelined by slice."""
    height = rounds(model.shape.ranks)
    near, far = _depths(model, height)
    legs = [(model.leg(level, nbytes, adds=adds), count) for level, count in ((False, near), (True, far)) if count]
    critical = model.start(bool(far and not near), nbytes) + sum(count * leg.hop for leg, count in legs)
    stage = max(max(count * leg.port for leg, count in legs), sum(count * leg.work for leg, count in legs))
    slices = legs[0][0].slices
    critical += (slices - 1) * stage
    root = slices * sum(count * leg.work for leg, count in legs)
    others = (model.shape.largest - 1) * slices * legs[0][0].work * 2
    return Time(critical, root + others)


def binomial_broadcast(model: Model, nbytes: float) -> Time:
    """Down the binomial tree."""
    return _binomial(model, nbytes, 0)


def binomial_reduce(model: Model, nbytes: float) -> Time:
    """Up the binomial tree."""
    return _binomial(model, nbytes, 1)


def _binomial_parts(model: Model, nbytes: float) -> Time:
    """The largest child has half of the vector, the next a quarter, ..."""
    shape = model.shape
    critical, work = model.start(_is_far(model, shape.ranks // 2), nbytes / 2), 0.0
    left = nbytes
    for level in reversed(range(rounds(shape.ranks))):
        left /= 2
        leg = model.leg(_is_far(model, 1 << level), left)
        critical += leg.alone
        work += leg.slices * leg.work + leg.row
    return Time(critical, work * 2)


def binomial_gather(model: Model, nbytes: float) -> Time:
    """Up the binomial tree, each hop with what its subtree holds."""
    return _binomial_parts(model, nbytes)


def binomial_scatter(model: Model, nbytes: float) -> Time:
    """Down the binomial tree."""
    return _binomial_parts(model, nbytes)
