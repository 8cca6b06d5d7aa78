"""Which algorithm serves a call: the one that takes least, by measured times where there are some, else by predictions.

A pure function of what all ranks share: the call, the shape of the job, and constants whose digest stands in the
descriptor of every operation. A forced ``algorithm=`` or RDMARING_ALGORITHM goes before it. See docs/TUNING.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdmaring.schedule import SHAPED, algorithms_of, cost
from rdmaring.schedule.cluster import Shape
from rdmaring.tuning.constants import MAILBOX_BYTES_MAX, MAILBOX_WORLD_MAX, Constants, in_mailbox
from rdmaring.tuning.model import predicted_s

__all__ = ["MAILBOX_BYTES_MAX", "MAILBOX_WORLD_MAX", "Candidate", "Choice", "Chooser", "Explanation", "candidates_of"]

SLICE_BYTES = 256 << 10
SCRATCH_CELL_BYTES = 1 << 20  # of one cell: rounds keep scratch small whatever the vector's size

# An edge to every rank costs set-up and memory: wider worlds take algorithms with few peers.
ALL_PEERS_WORLD_MAX = 32
ALL_PEERS = ("direct", "direct1")
# Never chosen: it is there to be measured against.
TEXTBOOK = ("naive",)
STEPS_AN_OCTAVE = 8
# Predictions so near to each other say nothing (a prediction is up to half off, docs/TUNING.md): then the one that has
# stood the test longest is taken: a tiny message, else one of these. In direct a rank adds its own part of all vectors
# alone; in direct1 each vector goes through every cache: up to three times as much where the caches are apart.
ALIKE = 1.5
# On a node with more ranks than processors a prediction is up to three times off: what its ranks wait for is each
# other's turns, and how many of these are needed the model does not count.
ALIKE_CROWDED = 3.0
# Where each rank has a processor and the node is one, two algorithms cross where the model says: there a tiny message
# need not be given the benefit of doubt (2 ranks, 16 KiB of ordinary memory: 3.0 us, direct 2.6, and 1.0 in place).
ALIKE_TINY = 1.1
TRUSTED_FIRST = ("direct", "direct1", "hierarchical", "ring")
# Between hosts all that enters a host shares its line. In a ring one rank fills it; where several do, they push each
# other's packets out: with lines of 200 Mbit/s direct takes 1.6 times as long at 4 MiB, 1.1 at 16; at 1 MiB 1.2
# times as long there, but 0.8 where the hosts' processors are what bounds.
SHARED_LINE_BYTES = 2 << 20
TRUSTED_BETWEEN_HOSTS = ("hierarchical", "ring", "direct", "direct1")


@dataclass(frozen=True)
class Candidate:
    """One algorithm for one call. seconds: what it is chosen by: measured_s if there is one, else predicted_s."""

    algorithm: str
    mailbox: bool
    predicted_s: float
    measured_s: float | None

    @property
    def seconds(self) -> float:
        return self.predicted_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True)
class Choice:
    """algorithm: of the schedule. mailbox: sent as a tiny message. reason: for people."""

    algorithm: str
    mailbox: bool
    slice_bytes: int
    reason: str


def candidates_of(collective: str, nodes: Sequence[int]) -> tuple[str, ...]:
    """The algorithms that may be chosen on ranks of these nodes."""
    name = "all_reduce" if collective == "barrier" else collective
    return tuple(_candidates(name, nodes))


def _candidates(collective: str, nodes: Sequence[int]) -> Iterator[str]:
    known = [name for name in algorithms_of(collective) if (collective, name) in cost.FORMS]
    for name in known:
        if name in TEXTBOOK and len(known) > 1:
            continue
        if name in ALL_PEERS and len(nodes) > ALL_PEERS_WORLD_MAX and len(known) > len(ALL_PEERS):
            continue
        if name in SHAPED and len(set(nodes)) in (1, len(nodes)):
            continue
        yield name


def rounded(nbytes: int) -> int:
    """Up to the next eighth of an octave: sizes so near to each other are served alike, and remembered together."""
    if nbytes <= 2 * STEPS_AN_OCTAVE:
        return nbytes
    step = 1 << (nbytes - 1).bit_length() - 1 - (STEPS_AN_OCTAVE.bit_length() - 1)
    return -(-nbytes // step) * step


class Chooser:
    """The choices among one set of ranks, by one set of constants. Remembers them."""

    def __init__(self, nodes: Sequence[int], constants: Constants) -> None:
        """nodes: of each rank."""
        self.nodes = tuple(nodes)
        self.constants = constants
        sizes = tuple(count for _, count in sorted(Counter(self.nodes).items()))
        self._shape = Shape.of_sizes(sizes)
        self._table = constants.table(sizes)
        self._chosen: dict[tuple[str, int], Choice] = {}

    @property
    def world(self) -> int:
        return len(self.nodes)

    def choose(self, collective: str, nbytes: int) -> Choice:
        """For ``nbytes`` of the whole vector, rounded up a little."""
        size = rounded(nbytes)
        found = self._chosen.get((collective, size))
        if found is None:
            found = self._chosen[(collective, size)] = self.best(collective, self.candidates(collective, size), size)
        return found

    def trusted(self, nbytes: int) -> tuple[str, ...]:
        """Which algorithms are taken first of those whose predictions are alike."""
        shared = len(set(self.nodes)) > 1 and nbytes >= SHARED_LINE_BYTES
        return TRUSTED_BETWEEN_HOSTS if shared else TRUSTED_FIRST

    @property
    def alike(self) -> float:
        """Predictions within so many times the least say nothing."""
        return ALIKE_CROWDED if self._one_node and self.constants.crowded(self.world) else ALIKE

    @property
    def alike_tiny(self) -> float:
        """Within so many times the least a tiny message is taken before all others."""
        return ALIKE_TINY if self._one_node and not self.constants.crowded(self.world) else self.alike

    @property
    def _one_node(self) -> bool:
        return len(set(self.nodes)) == 1

    def candidates(self, collective: str, nbytes: int) -> list[Candidate]:
        """All that may be chosen, with their times."""
        return [self.candidate(collective, name, nbytes) for name in candidates_of(collective, self.nodes)]

    def candidate(self, collective: str, algorithm: str, nbytes: int) -> Candidate:
        """What one algorithm takes."""
        name = "all_reduce" if collective == "barrier" else collective
        mailbox = in_mailbox(algorithm, nbytes, self.world)
        costs = self.constants.costs(algorithm, nbytes, self.world, self._shape.largest)
        seconds = predicted_s(name, algorithm, nbytes, self._shape, costs)
        measured_s = self._table.measured_s(name, algorithm, nbytes) if self._table else None
        return Candidate(algorithm, mailbox, seconds, measured_s)

    def best(self, collective: str, candidates: Sequence[Candidate], nbytes: int) -> Choice:
        """The least. If some were measured, only those: one that was refused for wrong numbers is not chosen either."""
        if collective == "barrier":  # nothing is as quick, and predictions of nothing all look alike
            candidates = [each for each in candidates if each.mailbox] or candidates
        measured = [each for each in candidates if each.measured_s is not None]
        ordered = sorted(measured or candidates, key=lambda each: each.seconds)
        first = ordered[0] if measured else self._trusted_first(ordered, nbytes)
        how = "measured" if measured else "predicted"
        reason = f"{how} {time_text(first.seconds)}"
        if len(ordered) > 1:
            other = ordered[1] if first is ordered[0] else ordered[0]
            reason += f"; next {other.algorithm} {time_text(other.seconds)}"
        return Choice(first.algorithm, first.mailbox, SLICE_BYTES, f"{reason}; constants {self.constants.source}")

    def _trusted_first(self, ordered: Sequence[Candidate], nbytes: int) -> Candidate:
        """Of those as quick as the first by what predictions can tell."""
        least = ordered[0].seconds
        tiny = [each for each in ordered if each.mailbox and each.seconds <= self.alike_tiny * least]
        alike = {each.algorithm: each for each in ordered if each.seconds <= self.alike * least}
        return tiny[0] if tiny else next((alike[name] for name in self.trusted(nbytes) if name in alike), ordered[0])


def time_text(seconds: float) -> str:
    """For people: ``3.2 us``, ``41 ms``."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


class Explanation(str):
    """What ``Communicator.explain`` gives: text to print, and what it says as fields.

    collective, nbytes, world: of the call. choice: what serves it, and the reason. candidates: with predicted and,
    where the tuning file has them or they were measured now, measured seconds. constants: where those come from, with
    their digest. on_gpu: who runs operations on arrays in GPU memory; "" where there were none.
    """

    collective: str
    nbytes: int
    world: int
    choice: Choice
    candidates: tuple[Candidate, ...]
    constants: str
    on_gpu: str

    def __new__(
        cls,
        collective: str,
        nbytes: int,
        chooser: Chooser,
        choice: Choice,
        candidates: Sequence[Candidate],
        measured_now: bool = False,
        on_gpu: str = "",
    ) -> Explanation:
        constants = f"{chooser.constants.source} ({chooser.constants.digest:08x})"
        nodes = len(set(chooser.nodes))
        where = f"{chooser.world} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        lines = [f"{collective} of {nbytes} bytes among {where}: {choice.algorithm} ({choice.reason})"]
        lines.append(f"  {'algorithm':<14}{'predicted':>12}{'now' if measured_now else 'measured':>12}")
        for each in sorted(candidates, key=lambda each: each.seconds):
            measured = "-" if each.measured_s is None else time_text(each.measured_s)
            marks = ", ".join(["chosen"] * (each.algorithm == choice.algorithm) + ["mailbox"] * each.mailbox)
            line = f"  {each.algorithm:<14}{time_text(each.predicted_s):>12}{measured:>12}  {marks}"
            lines.append(line.rstrip())
        lines.append(f"  constants: {constants}")
        if on_gpu:
            lines.append(f"  arrays in GPU memory: {on_gpu}")
        self = super().__new__(cls, "\n".join(lines))
        self.collective, self.nbytes, self.world = collective, nbytes, chooser.world
        self.choice, self.candidates, self.constants = choice, tuple(candidates), constants
        self.on_gpu = on_gpu
        return self
