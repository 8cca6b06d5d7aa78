"""Faults to be planted, each of which the matrix must find: drawn before the matrix was run on any of them.

Each is (name, file below native/src, the text that stands there once, what takes its place). Where the code changes the
text is changed with it; a fault whose text is gone, or that turns out to change nothing, is replaced by another of the
same kind.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    # ---- claim ----
    Mutant("a skipped end of the ring takes no room", "slot_ring.c", "if (skip + piece > rr", "if (piece > rr"),
    Mutant(
        "a piece runs over the ring's end", "slot_ring.c", "at + piece > ring->bytes)", "at + piece > ring->bytes + 64)"
    ),
    Mutant(
        "the ring begins again at its front though a piece is held",
        "slot_ring.c",
        "if (ring->first == ring->next) {",
        "if (ring->first + 1 >= ring->next) {",
    ),
    Mutant(
        "an aborted claim stays",
        "slot_ring.c",
        "\tring->open &= ~bit_of(claim->number);\n\tring->aborted |= bit_of(claim->number);\n",
        "",
    ),
    # ---- release ----
    Mutant("a piece is free one transfer early", "slot_ring.c", ".serial) <= 0)", ".serial) < 0)"),
    Mutant(
        "the first release frees all",
        "slot_ring.c",
        "ring->begin = ring->claims[ring->first % RR_SLOT_CLAIMS_MAX].end;",
        "ring->begin = ring->end;",
    ),
    Mutant(
        "a common slot is free one transfer early, by what is committed",
        "link_shm.c",
        "rr_common_commit(this->shm, this->reserved_common, link->peer, this->serial);",
        "rr_common_commit(this->shm, this->reserved_common, link->peer, this->serial - 1);",
    ),
    Mutant(
        "a common slot waits for one of its readers",
        "shm_common.c",
        "readers[reader].reads = false;\n\t}",
        "readers[reader].reads = false;\n\t\treturn true;\n\t}",
    ),
    Mutant(
        "DATA of the other direction tells of one release more",
        "link_shm.c",
        "released_serial(this) + (uint32_t)more)",
        "released_serial(this) + (uint32_t)more + 1)",
    ),
    Mutant(
        "the receiver's counter is one ahead",
        "link_shm.c",
        "rr_publish64(&this->consumed->value, this->serial);",
        "rr_publish64(&this->consumed->value, this->serial + 1);",
    ),
    Mutant(
        "a stream counts as taken what was only queued",
        "stream_send.c",
        "\treturn edge->taken;",
        "\treturn link->sent;",
    ),
    Mutant(
        "over verbs a slot is free one transfer early",
        "verbs_send.c",
        "rr_slot_release(&edge->room, edge->credited);",
        "rr_slot_release(&edge->room, edge->credited + 1);",
    ),
    Mutant(
        "over verbs memory counts as sent before its request has ended",
        "verbs_send.c",
        "edge->request_of[(edge->serial - 1) % RR_RING_COUNT])\n\t\tlink->held_end",
        "0)\n\t\tlink->held_end",
    ),
    # ---- landing ----
    Mutant("a landing runs over the end of a piece", "engine_receive.c", "if (run < slice->bytes)", "if (run < 1)"),
    Mutant(
        "what is read of a cut payload lands at its begin",
        "stream_receive.c",
        "(char *)body + stream->body_got : NULL",
        "(char *)body : NULL",
    ),
    Mutant(
        "the kernel's copy of the transfer before is taken for this one's",
        "link_shm.c",
        "\tthis->fetched = false;\n",
        "",
    ),
    # ---- implied ----
    Mutant(
        "an implied transfer frees what is in flight",
        "link_shm.c",
        "\tif (transfer->implied) {\n\t\tthis->serial++;",
        "\tif (transfer->implied) {\n\t\trr_slot_release(&this->room, this->serial++);",
    ),
    Mutant(
        "nobody waits until input that is read in place was read",
        "engine_send.c",
        "if (transfer->mode == RR_MODE_SOURCE || transfer->mode == RR_MODE_CMA)\n\t\tout->held_end",
        "if (!transfer->implied && (transfer->mode == RR_MODE_SOURCE || transfer->mode == RR_MODE_CMA))\n"
        "\t\tout->held_end",
    ),
    # ---- crc ----
    Mutant(
        "of a link only the first checksum is compared",
        "engine_receive.c",
        "in->checked == in->sent + 1)",
        "in->checked)",
    ),
    Mutant(
        "a checksum of several pieces is the last one's",
        "engine_send.c",
        "crc = rr_crc32c(crc, from,",
        "crc = rr_crc32c(0, from,",
    ),
)

# Faults that were there, put back as far as the code of today has a place for them.
MENDS = (
    Mutant(
        "how far the readers of a cell are is probed in the cell",
        "engine_send.c",
        "\t\tcell_past = cell_past ||",
        "\t\tstatic unsigned int places;\n"
        "\t\tif (transfer.mode == RR_MODE_SOURCE && transfer.buffer == RR_SCRATCH && transfer.bytes >= 4096 &&\n"
        "\t\t    places++ % 8 == 0)\n"
        "\t\t\t*(volatile char *)(engine->buffers[RR_SCRATCH].zero + transfer.coordinate) = 0;\n"
        "\t\tcell_past = cell_past ||",
    ),
    Mutant(
        "a release of a transfer that has no place frees what stands after it",
        "slot_ring.c",
        "\t\tif ((int64_t)(serial - ring->claims[number % RR_SLOT_CLAIMS_MAX].serial) <= 0)",
        "\t\tif ((int64_t)(serial + RR_SLOT_CLAIMS_MAX / 2 - ring->claims[number % RR_SLOT_CLAIMS_MAX].serial) <= 0)",
    ),
)
