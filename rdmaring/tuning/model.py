"""What a call takes by the closed forms, with what comes before its first row."""

from __future__ import annotations

from rdmaring.schedule import cost
from rdmaring.schedule.cluster import Costs, Shape
from rdmaring.tuning.constants import in_mailbox


def predicted_s(collective: str, algorithm: str, nbytes: int, shape: Shape, costs: Costs) -> float:
    """Seconds. Before a row moves, both ends of its link tell each other which operation they are in: one hop more.

    A tiny message says it itself.
    """
    rows_s = cost.predict(collective, algorithm, nbytes, shape, costs)
    if shape.ranks == 1 or in_mailbox(algorithm, nbytes, shape.ranks):
        return rows_s
    return rows_s + (costs.far if shape.nodes > 1 else costs.near).latency_s
