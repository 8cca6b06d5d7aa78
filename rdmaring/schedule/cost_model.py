"""The parts that closed forms are put together from: what one message costs at one level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rdmaring.schedule.cluster import Costs, LevelCost, Shape


class Leg(NamedTuple):
    """One row's message, cut in slices, from a sender's hand through the row that receives it. Seconds."""

    slices: int  # of all channels
    wire: float  # a slice's time on its port, alone
    port: float  # a slice's time on its port, which others may use as well
    latency: float
    work: float  # of the receiver's processor for a slice
    row: float  # of the receiver's processor for a row

    @property
    def hop(self) -> float:
        """One slice all the way: latency counts, overlap does not."""
        return self.wire + self.latency + self.row + self.work

    @property
    def period(self) -> float:
        """Slices follow each other at this distance."""
        return max(self.port, self.work)

    @property
    def span(self) -> float:
        """Rows follow each other at this distance when all their slices keep the port or the processor busy."""
        return max(self.slices * self.port, self.slices * self.work + self.row)

    @property
    def tail(self) -> float:
        """From the first slice's arrival to the last's."""
        return (self.slices - 1) * self.period

    @property
    def alone(self) -> float:
        """The whole message, with nothing before it to overlap with."""
        return self.hop + self.tail


@dataclass(frozen=True, slots=True)
class Model:
    """Costs on a shape, for vectors split over channels."""

    costs: Costs
    shape: Shape
    channels: int

    def slices(self, nbytes: float) -> int:
        """Of a message, all channels together."""
        per_channel = nbytes / self.channels
        return self.channels * max(1, -(-int(per_channel) // self.costs.slice_bytes))

    def level(self, far: bool) -> LevelCost:
        return self.costs.far if far else self.costs.near

    def work(self, nbytes: float, adds: int = 0, messages: int = 1, sent: float = 0.0) -> float:
        """Of a processor for a slice of ``nbytes``.

        adds: additions per byte. messages: slices received, or sent. sent: seconds per byte for sending.
        """
        return self.costs.slice_s * messages + nbytes * (adds * self.costs.reduce_s_per_byte + sent)

    def leg(
        self,
        far: bool,
        nbytes: float,
        *,
        adds: int = 0,
        onward: bool = False,
        senders: int = 1,
        crowd: float = 1.0,
    ) -> Leg:
        """A message of ``nbytes`` at one level.

        adds: additions per byte where it arrives. onward: it is sent on from there, at the same level.
        senders: how many ranks of the node send between nodes at once. crowd: how many such messages share the port.
        """
        level = self.level(far)
        count = self.slices(nbytes)
        size = nbytes / count
        share = crowd * (self.costs.far_share(senders, self.channels) if far else 1.0)
        # The way between nodes may be narrower than a rail: then a slice alone is held up there, too.
        narrow = max(1.0, self.costs.oversubscription / self.costs.rails) if far else 1.0
        wire = size * level.s_per_byte * narrow
        return Leg(
            slices=count,
            wire=wire,
            port=size * level.s_per_byte * share,
            latency=level.latency_s,
            work=self.work(size, adds, 1, level.cpu_s_per_byte if onward else 0.0),
            row=self.costs.row_s * self.channels,
        )

    def start(self, far: bool, nbytes: float, messages: int = 1) -> float:
        """From the call to the first slice's leaving the processor of a rank that only sends."""
        size = nbytes / self.slices(nbytes)
        return self.costs.row_s + self.work(size, 0, messages, messages * self.level(far).cpu_s_per_byte)

    def levels(self) -> tuple[bool, ...]:
        """The levels that ranks which all talk to each other use: far?"""
        near, far = self.shape.largest > 1, self.shape.nodes > 1
        return (False,) * near + (True,) * far
