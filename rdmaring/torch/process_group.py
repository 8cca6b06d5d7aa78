"""What torch.distributed calls, by its names, old and new; see docs/decisions/0007-torch.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rdmaring._native import lib
from rdmaring.errors import ArgumentError, RdmaringError
from rdmaring.torch import barriers, sparse
from rdmaring.torch.errors import as_torch_error
from rdmaring.torch.group import Group
from rdmaring.torch.messages import Messages
from rdmaring.torch.operations import Operations, elements, plain_reduction
from rdmaring.torch.reductions import NAMES, ReduceOp, kind_of
from rdmaring.torch.tensors import vector
from rdmaring.torch.work import BaseWork

Call = TypeVar("Call", bound=Callable[..., Any])
run_at = lib.rr_py_run_at
PLANS_MAX = 256
STRIDED = torch.strided
# To compare two ReduceOps costs 1.3 us, to hash one 0.1: where the hash tells them apart, it is the key.
_HASHES = [{hash(ReduceOp(kind)) for kind in NAMES} for _ in range(2)]
key_of_op: Callable[[Any], Any] = hash if _HASHES[0] == _HASHES[1] and len(_HASHES[0]) == len(NAMES) else ReduceOp
DONE = BaseWork([])  # of synchronous calls whose caller only waits for it


class _Options:
    """Of the calls that pass an op, a root and a timeout in place of an options object."""

    asyncOp = True

    def __init__(self, op: Any = ReduceOp.SUM, root: int = 0, timeout: timedelta | None = None) -> None:
        self.reduceOp = op
        self.rootRank = root
        self.timeout = timeout


def _options(given: Any, root: int = 0, timeout: timedelta | None = None) -> Any:
    if given is None:
        return _Options(root=root, timeout=timeout)
    if isinstance(given, timedelta):
        return _Options(root=root, timeout=given)
    if isinstance(given, int):
        return _Options(root=given, timeout=timeout)
    if isinstance(given, ReduceOp) or not hasattr(given, "timeout"):
        return _Options(given, root, timeout)
    return given


def _not_compiled(call: Call) -> Call:
    """What torch.compile calls as it is, without looking inside. (torch.compiler.disable would import the compiler.)"""
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def _torch_errors(call: Call) -> Call:
    @wraps(call)
    def with_torch_errors(*given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except RdmaringError as error:
            raised = as_torch_error(error)
            if raised is error:
                raise
            raise raised from error

    return _not_compiled(with_torch_errors)  # type: ignore[return-value]


def _one(tensors: Any) -> Tensor:
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"{len(tensors)} tensors were given; accepted is one a process")
    found: Tensor = tensors[0]
    return found


class RingProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of torch.distributed on a communicator of rdmaring's, ``group.comm``.

    Collectives return a Work. What the caller did wrong raises our ``ValueError`` or ``TypeError``, anything else
    :class:`rdmaring.torch.errors.RingError`, a ``DistBackendError``: the group is lost then.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.ring = Group(store, rank, size, timeout)
        self._operations = Operations(self.ring)
        self._messages = Messages(self.ring)
        self._plans: dict[tuple[Any, int, Any], Any] = {}
        self._name = ""
        self._description = "undefined"

    @property
    def comm(self) -> Any:
        """The :class:`rdmaring.Communicator` beneath: ``links``, ``explain()``, ``trace()``; not to be closed."""
        return self.ring.comm

    # ---- identity ----

    def getBackendName(self) -> str:
        return "rdmaring"

    name = _get_backend_name = getBackendName

    def _get_backend(self, device: Any) -> RingProcessGroup:
        """Itself, for all devices: torch 2.15 asks in batch_isend_irecv, by which it would coalesce, and in abort."""
        return self

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_desc = setGroupDesc

    def getSize(self) -> int:
        return self.ring.size

    def getRank(self) -> int:
        return self.ring.rank

    def get_group_store(self) -> Any:
        return self.ring.store

    # ---- reducing ----

    @_not_compiled
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> BaseWork:
        # A synchronous call of one small tensor costs what is written here: nothing is looked at twice.
        try:
            if opts.asyncOp:
                return self._allreduce(tensors, opts)
            (tensor,) = tensors
            plan = self._plans.get((tensor.dtype, tensor.numel(), key_of_op(opts.reduceOp)))
            plain = tensor.is_cpu and tensor.layout is STRIDED and tensor.is_contiguous()
        except (AttributeError, ValueError, TypeError):  # another of the signatures, or what _allreduce() refuses
            return self._allreduce(tensors, _options(opts, timeout=timeout))
        if plan is None or not plain or tensor.is_neg():
            return self._allreduce(tensors, opts)
        status = run_at(plan.handle, tensor.data_ptr())
        if status:
            self._finish(status)
        return DONE

    @_torch_errors
    def _finish(self, status: int) -> None:
        self.ring.finish(status)

    @_torch_errors
    def _allreduce(self, tensors: Any, opts: Any) -> BaseWork:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if given and given[0].layout is not STRIDED:
            return sparse.all_reduce(self._operations, _one(given), opts)
        if len(given) == 1:
            self._remember(given[0], opts)
        return self._operations.run(self._operations.all_reduce(given, opts.reduceOp), given, opts)

    def _remember(self, tensor: Tensor, opts: Any) -> None:
        """The plan for the fast path: of dtypes whose tensors are always plain where they are contiguous."""
        if not isinstance(opts.reduceOp, ReduceOp) or self.ring.comm._finite or not tensor.numel():
            return
        key = (tensor.dtype, tensor.numel(), key_of_op(ReduceOp(kind_of(opts.reduceOp))))
        how = plain_reduction(tensor, opts.reduceOp)
        if key in self._plans or how is None or tensor.dtype.is_complex:
            return
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        whole = vector([tensor], how.element)
        self._plans[key] = self.ring.plan("all_reduce", whole, whole.count, op=how.op)

    @_torch_errors
    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> BaseWork:
        opts = _options(opts)
        given = list(tensors)
        return self._operations.run(self._operations.all_reduce(given, opts.reduceOp), given, opts)

    @_torch_errors
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = ReduceOp.SUM, timeout: timedelta | None = None
    ) -> BaseWork:
        tensor = _one(tensors)
        opts = _Options(op, opts, timeout) if isinstance(opts, int) else _options(opts)
        return self._operations.run(self._operations.reduce(tensor, opts.rootRank, opts.reduceOp), [tensor], opts)

    @_torch_errors
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> BaseWork:
        opts = _options(opts, timeout=timeout)
        out = _one(outputs)
        parts = inputs if isinstance(outputs, Tensor) else inputs[0]
        self._check_list(parts, "input")
        sizes = [part.numel() for part in parts]
        return self._operations.run(self._operations.reduce_scatter(out, parts, opts.reduceOp, sizes), [out], opts)

    @_torch_errors
    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> BaseWork:
        return self._reduce_scatter_singles([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base

    @_torch_errors
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> BaseWork:
        return self._reduce_scatter_singles(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_singles(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> BaseWork:
        opts = _options(opts)
        parts = []
        for out, whole in zip(outputs, inputs, strict=True):
            if whole.numel() != out.numel() * self.ring.size:
                raise ArgumentError(
                    f"the input has {whole.numel()} elements: input tensor must be the same size as output size "
                    f"times world size, {out.numel()} * {self.ring.size}"
                )
            sizes = [out.numel()] * self.ring.size
            parts += self._operations.reduce_scatter(out, [whole], opts.reduceOp, sizes)
        return self._operations.run(parts, list(outputs), opts)

    # ---- moving ----

    @_torch_errors
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0) -> BaseWork:
        tensor = _one(tensors)
        opts = _options(opts, root, timeout)
        return self._operations.run(self._operations.broadcast(tensor, opts.rootRank), [tensor], opts)

    @_torch_errors
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> BaseWork:
        opts = _options(opts)
        tensor = _one(inputs)
        parts = outputs if isinstance(inputs, Tensor) else outputs[0]
        self._check_list(parts, "output")
        sizes = [part.numel() for part in parts]
        return self._operations.run(self._operations.all_gather(parts, tensor, sizes), list(parts), opts)

    @_torch_errors
    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> BaseWork:
        self._check_list(output_lists, "output")
        parts = []
        for index, tensor in enumerate(inputs):
            outs = [output_lists[rank][index] for rank in range(self.ring.size)]
            parts += self._operations.all_gather(outs, tensor, [out.numel() for out in outs])
        return self._operations.run(parts, [each for outs in output_lists for each in outs], _options(opts))

    @_torch_errors
    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> BaseWork:
        return self._all_gather_singles([output], [input], opts)

    all_gather_single = _allgather_base

    @_torch_errors
    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> BaseWork:
        return self._all_gather_singles(outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_singles(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> BaseWork:
        parts = []
        for whole, tensor in zip(outputs, inputs, strict=True):
            if whole.numel() != tensor.numel() * self.ring.size:
                raise ArgumentError(
                    f"the output has {whole.numel()} elements: output tensor size must be equal to world_size times "
                    f"input tensor size, {self.ring.size} * {tensor.numel()}"
                )
            parts += self._operations.all_gather([whole], tensor, [tensor.numel()] * self.ring.size)
        return self._operations.run(parts, list(outputs), _options(opts))

    @_torch_errors
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> BaseWork:
        opts = _options(opts, timeout=timeout)
        tensor = _one(inputs)
        outs = outputs if isinstance(inputs, Tensor) else (outputs[0] if outputs else [])
        return self._operations.run(self._operations.gather(outs, tensor, opts.rootRank), list(outs), opts)

    @_torch_errors
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> BaseWork:
        opts = _options(opts, timeout=timeout)
        out = _one(outputs)
        parts = inputs if isinstance(outputs, Tensor) else (inputs[0] if inputs else [])
        return self._operations.run(self._operations.scatter(out, parts, opts.rootRank), [out], opts)

    @_torch_errors
    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> BaseWork:
        outs = list(outputs)
        get, give = [out.numel() for out in outs], [each.numel() for each in inputs]
        return self._operations.run(self._operations.all_to_all(outs, inputs, get, give), outs, _options(opts))

    @_torch_errors
    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> BaseWork:
        get = elements(output, output_split_sizes, self.ring.size, "output")
        give = elements(input, input_split_sizes, self.ring.size, "input")
        parts = self._operations.all_to_all([output], [input], get, give)
        return self._operations.run(parts, [output], _options(opts))

    all_to_all_single = alltoall_base

    def _check_list(self, tensors: Sequence[Any], name: str) -> None:
        if len(tensors) != self.ring.size:
            raise ArgumentError(
                f"invalid {name} tensor list: it has {len(tensors)} entries; accepted is one a rank, {self.ring.size}"
            )

    # ---- barriers ----

    @_torch_errors
    def barrier(self, opts: Any = None) -> BaseWork:
        return self._operations.run(self._operations.barrier(), [], _options(opts))

    @_torch_errors
    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier by the store: rank 0 says which ranks did not come. torch's own function refuses all but gloo."""
        limit_s = self.ring.timeout_s if timeout is None else timeout
        limit_s = limit_s.total_seconds() if isinstance(limit_s, timedelta) else limit_s
        barriers.monitored(self.ring, limit_s, wait_all_ranks)

    # ---- messages ----

    @_not_compiled
    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> BaseWork:
        return self._messages.send(_one(tensors), peer, tag)

    @_not_compiled
    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> BaseWork:
        return self._messages.recv(_one(tensors), peer, tag)

    @_not_compiled
    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> BaseWork:
        return self._messages.recv(_one(tensors), None, tag)

    # ---- life ----

    def abort(self) -> None:
        """End what is in flight, here and on the ranks inside it; from any thread."""
        self.ring.abort("abort() was called on the process group")

    def shutdown(self) -> None:
        self._plans.clear()
        self.ring.close()

    def set_timeout(self, timeout: timedelta) -> None:
        self.ring.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Ranks count alike from the start: nothing is to be agreed."""

    def _get_sequence_number_for_group(self) -> int:
        return self.ring.sequence

    def __repr__(self) -> str:
        return f"<rdmaring.torch.RingProcessGroup {self._name!r} rank {self.ring.rank} of {self.ring.size}>"
