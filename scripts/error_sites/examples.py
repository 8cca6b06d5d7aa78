"""For each class a message as a user reads it, and which places it carries. A test holds each against the sources."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """cause: what it says; carries: attributes that are set, beside ``cause`` and ``hint``."""

    cause: str
    carries: str = ""


OPERATION = "`rank`, `collective`, `op`; `peer`, `link`, `transport` and `row` where one edge is at fault; `verdict`"

EXAMPLES = {
    "ArgumentError": Example("out has 90 elements; accepted are 100"),
    "ArgumentTypeError": Example("x has dtype complex64; accepted are int8, int32, int64, float16, bfloat16, float32"),
    "OutOfMemoryError": Example("no room for 1073741824 bytes of registered memory: 268435456 are available"),
    "UnsupportedError": Example("row 3 adds more than 8 vectors: use algorithm ring for so many ranks"),
    "NonFiniteError": Example(
        "all_reduce of 5000 float32 elements: element 3999 of rank 1's input is a NaN or an infinity",
        "`rank`, `peer` (the rank that gave it), `link`, `collective`, `index` (of the element)",
    ),
    "ScheduleFormatError": Example("rows are of version 9, this build reads 4"),
    "CudaError": Example(
        "the CUDA driver, libcuda.so.1, cannot be loaded: no such file", "`driver_error`: the driver's name of it"
    ),
    "LinkError": Example("a data connection to rank 1 (10.0.0.2) ended: Connection reset by peer", OPERATION),
    "ProtocolError": Example("rank 2 granted less memory than the operation writes", OPERATION),
    "CorruptError": Example(
        "slice 3 from rank 0 to rank 1 in step 2 came otherwise than it was sent: chunk 1, bytes 524288 to 786432 of "
        "the vector, CRC32C 1b2c3d4e, sent was 9a8b7c6d: it changed on this hop, in the slot or on the wire",
        OPERATION,
    ),
    "OperationTimeoutError": Example(
        "all_reduce (op 7) timed out after 30.0 s", OPERATION + "; the message goes on with the verdict's line"
    ),
    "PeerDiedError": Example(
        "rank 2 (pid 4711) died; its last finished op was 6; rank 0 is in op 7 (all_reduce)", OPERATION
    ),
    "PeerFailedError": Example(
        "rank 1 failed (timeout): all_reduce (op 7) timed out after 30.0 s", OPERATION + "; `peer` is that rank"
    ),
    "PeerClosedError": Example("rank 1 closed its communicator; rank 0 is in op 7 (all_reduce)", OPERATION),
    "AbortedError": Example("rank 2 aborted: interrupted", "`rank`, `peer` (who aborted), `collective`, `op`"),
    "MismatchError": Example(
        "ranks disagree in op 7: rank 0 called all_reduce of 100 float32; rank 1 called all_reduce of 90 float32",
        OPERATION,
    ),
    "ClosedError": Example("communicator 'world' of rank 0 is closed", "`rank`"),
    "ForkedError": Example("rank 0's communicator is used in a child process of the one that made it", "`rank`"),
    "SystemCallError": Example("cannot start the progress thread: Resource temporarily unavailable"),
    "SetupError": Example(
        "rank 1 runs rdmaring 0.3.0 (4.2), but rank 0, which came before, runs rdmaring 0.2.0 (4.1)", "`rank`, `peer`"
    ),
    "NoQuorumError": Example(
        "no majority: ranks 0, 1 of 5 came within 30 s, and the death of the others is not proven: rank 2: its node "
        "does not answer",
        "`rank`, `present`, `absent`",
    ),
    "LeftOutError": Example("rank 3 came too late: ranks 0, 1, 2 went on without it", "`rank`"),
    "DeviceError": Example("cuMemcpyDtoHAsync failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", OPERATION),
}
