"""What a device does in a training step, read from the traced program (its jaxpr), which takes a
second and no compiler: what it sends, what moves through its memory, and how much of that is in use
at a time.

A compiler fuses operations. Here values are told apart by what is likely to become of them:

    a matrix product, gather, scatter, kernel, loop, what is sent   is written to memory
    an elementwise operation                                        is computed where it is read, or
        written, where one of those reads it or the program ends with it
    a reshape, a transpose                                          is the same array

Memory is in use from the operation that writes it to the last that reads it, or reads something
computed from it on the way. A loop over layers writes what is kept for the backward pass: its
stacked results.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from jax.extend.core import Literal
from jax.interpreters.partial_eval import dce_jaxpr

# The same array in another shape, order or type of handle.
_VIEWS = {
    *("reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "stop_gradient"),
    *("optimization_barrier", "layout_constraint", "sharding_constraint", "name", "rev"),
}
_SENDS = {"all_gather", "reduce_scatter", "psum", "pmax", "pmin", "ppermute", "all_to_all"}
_LOOPS = {"scan", "while"}
# What is read from memory and written to it. Everything else is computed where it is read.
_WRITTEN = {
    *("dot_general", "ragged_dot_general", "conv_general_dilated", "pallas_call", "gather"),
    *("scatter", "scatter-add", "scatter-mul", "scatter-max", "scatter-min", "sort", "top_k"),
    *("dynamic_update_slice", "fft", "cholesky", "triangular_solve", "ffi_call", "custom_call"),
    *_SENDS,
    *_LOOPS,
}
# Sums and the like: written, and what they read need not be.
_REDUCTIONS = {
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"),
    *("argmax", "argmin", "cumsum", "cumlogsumexp", "cummax", "cumprod"),
}


class Value(NamedTuple):
    """An array that the program writes to memory.

    Attributes:
        size: bytes.
        times: how many of them a loop stacks; 1 for all others.
    """

    size: int
    shape: str  # such as bfloat16[16,512,768]
    operation: str  # that writes it
    place: str  # in the model, such as encoder/layers/attention


@dataclass
class Step:
    """What one device does in a step.

    Attributes:
        sent: bytes by the mesh axes that they cross, as collectives.py counts them.
        moved: bytes that are read from memory or written to it.
        peak: bytes in use at a time, besides the arguments.
        alive: what they are then, the largest first.
    """

    sent: dict[tuple[str, ...], int] = field(default_factory=lambda: defaultdict(int))
    moved: int = 0
    peak: int = 0
    alive: list[Value] = field(default_factory=list)


def of_device(jaxpr: Any) -> Step:
    """What one device does in a step.

    Args:
        jaxpr: of the train step, Program.trace().jaxpr.
    """
    operations, arguments, results = _flat(_on_one_device(jaxpr.jaxpr))
    step = _Run(operations, arguments, results, in_loop=False).step
    step.alive.sort(key=lambda value: -value.size)
    return step


class _Operation(NamedTuple):
    """An equation of a flat program: values are numbers."""

    kind: str
    reads: list[int]
    writes: list[int]
    equation: Any


def _on_one_device(jaxpr: Any) -> Any:
    """The part that each device runs by itself; all of it where there is but one."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            return _jaxpr(equation.params["jaxpr"])
        inner = _inlined(equation)
        if inner is not None:
            found = _on_one_device(inner)
            if found is not inner:
                return found
    return jaxpr


def _jaxpr(jaxpr: Any) -> Any:
    """Without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _inlined(equation: Any) -> Any:
    """The program that an equation merely calls; None: it does something itself."""
    params = equation.params
    if equation.primitive.name in ("scan", "while", "shard_map", "pallas_call"):
        return None
    if equation.primitive.name == "cond":  # the last is that of accelerators
        return _jaxpr(params["branches"][-1])
    for name in ("jaxpr", "call_jaxpr", "callee"):
        if name in params:
            return _jaxpr(params[name])
    return None


def _flat(jaxpr: Any) -> tuple[list[_Operation], list[int], list[int]]:
    """The operations of a program and of all that it calls, without those whose results nobody
    reads; its arguments; its results.
    """
    jaxpr = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]
    operations: list[_Operation] = []
    numbers = count()

    def walk(jaxpr: Any, arguments: Sequence[int]) -> list[int]:
        values = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= {variable: next(numbers) for variable in jaxpr.constvars}

        def number(atom: Any) -> int:
            return next(numbers) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            reads = [number(atom) for atom in equation.invars]
            inner = _inlined(equation)
            if inner is not None:
                # A choice reads, first, which branch.
                results = walk(inner, reads[len(reads) - len(inner.invars) :])
            else:
                results = [next(numbers) for _ in equation.outvars]
                operations.append(_Operation(equation.primitive.name, reads, results, equation))
            values |= zip(equation.outvars, results, strict=True)
        return [number(atom) for atom in jaxpr.outvars]

    arguments = [next(numbers) for _ in jaxpr.invars]
    return operations, arguments, walk(jaxpr, arguments)


def _size(atom: Any) -> int:
    return math.prod(atom.aval.shape) * getattr(atom.aval.dtype, "itemsize", 8)


class _Run:
    """A flat program as one device runs it.

    Args:
        in_loop: its results are written where the loop keeps them.
    """

    def __init__(
        self,
        operations: list[_Operation],
        arguments: list[int],
        results: list[int],
        in_loop: bool,
    ):
        self.operations, self._results = operations, results
        self._in_loop = in_loop
        self._size: dict[int, int] = {}
        for operation in operations:
            atoms = (*operation.equation.invars, *operation.equation.outvars)
            numbers = (*operation.reads, *operation.writes)
            self._size |= {n: _size(atom) for n, atom in zip(numbers, atoms, strict=True)}
        self._arguments = set(arguments)
        self._is_written = self._find_written()
        self.operations = self._scheduled()
        self._sources = self._find_sources()
        self.step = self._walk()

    def _find_written(self) -> set[int]:
        """The values that are written to memory."""
        # Who reads a value, in the end: views pass on what is read of them.
        readers: dict[int, list[str]] = defaultdict(list)
        for result in self._results:
            readers[result].append("a loop" if self._in_loop else "the program")
        written = set()
        for operation in reversed(self.operations):
            for result in operation.writes:
                read_by = readers[result]
                is_read_whole = any(kind in _WRITTEN | {"the program"} for kind in read_by)
                if operation.kind in _VIEWS:
                    continue
                if operation.kind == "dot_general":  # may end in the one that reads it
                    is_written = is_read_whole or len(read_by) != 1 or read_by == ["a loop"]
                elif operation.kind in _WRITTEN | _REDUCTIONS:
                    is_written = True
                else:
                    is_written = is_read_whole
                if is_written:
                    written.add(result)
            for place, value in enumerate(operation.reads):
                if operation.kind in _VIEWS:
                    matching = operation.writes[min(place, len(operation.writes) - 1)]
                    readers[value] += readers[matching]
                else:
                    readers[value].append(_reader(operation, place))
        return written

    def _scheduled(self) -> list[_Operation]:
        """The operations as they are run: a gradient that is split over devices as soon as it is
        there, so that the whole of it need not be kept.
        """
        written_at: dict[int, int] = defaultdict(int)
        places = []
        for index, operation in enumerate(self.operations):
            is_written = any(n in self._is_written for n in operation.writes)
            place = index
            if operation.kind == "reduce_scatter" or not is_written:
                place = max((written_at[n] for n in operation.reads), default=0)
            written_at |= dict.fromkeys(operation.writes, place)
            places.append(place)
        order = sorted(range(len(places)), key=lambda index: (places[index], index))
        return [self.operations[index] for index in order]

    def _find_sources(self) -> dict[int, frozenset[int]]:
        """Of each value the written ones, or arguments, that it is computed from."""
        sources: dict[int, frozenset[int]] = defaultdict(frozenset)
        sources |= {argument: frozenset([argument]) for argument in self._arguments}
        for operation in self.operations:
            for place, result in enumerate(operation.writes):
                if result in self._is_written:
                    sources[result] = frozenset([result])
                elif operation.kind in _VIEWS and len(operation.reads) == len(operation.writes):
                    sources[result] = sources[operation.reads[place]]
                else:
                    sources[result] = frozenset().union(*(sources[n] for n in operation.reads))
        return sources

    def _walk(self) -> Step:
        step = Step()
        last_read: dict[int, int] = {}
        for index, operation in enumerate(self.operations):
            for value in operation.reads:
                last_read |= dict.fromkeys(self._sources[value], index)
        for value in self._results:
            last_read |= dict.fromkeys(self._sources[value], len(self.operations))

        alive: dict[int, Value] = {}
        in_use = 0
        for index, operation in enumerate(self.operations):
            read = frozenset().union(*(self._sources[n] for n in operation.reads))
            written = [n for n in operation.writes if n in self._is_written]
            over = [n for n in read if n in alive and last_read[n] <= index]
            reused = [n for n in over if n in self._reusable(operation)]
            in_use -= sum(alive.pop(n).size for n in reused)
            for number, atom in zip(operation.writes, operation.equation.outvars, strict=True):
                if number in self._is_written and last_read.get(number, -1) >= index:
                    alive[number] = _value(operation, atom)
                    in_use += alive[number].size
            inner = self._inside(operation, step)
            if written and operation.kind not in _LOOPS:
                step.moved += sum(self._size.get(n, 0) for n in (*read, *written))
            if in_use + inner.peak > step.peak:
                step.peak = in_use + inner.peak
                step.alive = [*alive.values(), *inner.alive]
            in_use -= sum(alive.pop(n).size for n in over if n in alive)
        return step

    def _reusable(self, operation: _Operation) -> frozenset[int]:
        """What an operation may overwrite with its results: an elementwise one its inputs, a loop
        what it hands from turn to turn.
        """
        reads = operation.reads
        if operation.kind in (_WRITTEN | _REDUCTIONS) - {"while"}:
            reads = []
        if operation.kind == "scan":
            constants, carried = _loop_operands(operation.equation)
            reads = operation.reads[constants : constants + carried]
        return frozenset().union(*(self._sources[n] for n in reads))

    def _inside(self, operation: _Operation, step: Step) -> Step:
        """What a loop does besides its results; what is sent is added to `step`."""
        equation = operation.equation
        if operation.kind in _SENDS:
            for axes, sent in _sent(equation):
                step.sent[axes] += sent
        if operation.kind not in _LOOPS:
            return Step()
        turns = equation.params.get("length", 1)
        body = _jaxpr(equation.params["jaxpr" if operation.kind == "scan" else "body_jaxpr"])
        inner = _Run(*_flat(body), in_loop=True).step
        for axes, sent in inner.sent.items():
            step.sent[axes] += turns * sent
        step.moved += turns * inner.moved
        if operation.kind == "scan":
            for value in _converted_ahead(equation, body):
                inner.peak += value.size
                inner.alive.append(value)
        return inner


def _reader(operation: _Operation, place: int) -> str:
    """Who reads the operand at a place: what a loop reads in every turn, its operations do."""
    if operation.kind == "scan" and place < _loop_operands(operation.equation)[0]:
        return "a loop"
    return operation.kind


def _loop_operands(equation: Any) -> tuple[int, int]:
    """How many operands of a scan are the same in every turn, and how many are handed from turn to
    turn; the others, and the results after these, have an axis more outside than inside.
    """
    body = _jaxpr(equation.params["jaxpr"])

    def stacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(a.aval.shape) != len(b.aval.shape) for a, b in pairs)

    carried = len(body.outvars) - stacked(equation.outvars, body.outvars)
    return len(body.invars) - stacked(equation.invars, body.invars) - carried, carried


def _value(operation: _Operation, atom: Any) -> Value:
    place = str(operation.equation.source_info.name_stack)
    shape = ",".join(map(str, atom.aval.shape))
    return Value(_size(atom), f"{atom.aval.dtype}[{shape}]", operation.kind, place)


def _converted_ahead(equation: Any, body: Any) -> Iterator[Value]:
    """The parameters that a loop reads in a narrower type: compilers convert those of all layers
    before it.
    """
    operations, arguments, _ = _flat(body)
    layers = set(arguments[sum(_loop_operands(equation)) :])
    for operation in operations:
        if operation.kind == "convert_element_type" and operation.reads[0] in layers:
            (narrow,), (wide,) = operation.equation.outvars, operation.equation.invars
            if _size(narrow) < _size(wide):
                value = _value(operation, narrow)
                turns = equation.params["length"]
                yield value._replace(size=turns * value.size, shape=f"{turns} × {value.shape}")


def _sent(equation: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """Mesh axes and bytes: a sum goes there and back, a gather sends its result, a scatter what it
    reads.
    """
    params = equation.params
    axes = params["axes"] if "axes" in params else params["axis_name"]
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    kind = equation.primitive.name
    if kind in ("psum", "pmax", "pmin"):
        yield axes, 2 * sum(map(_size, equation.invars))
    elif kind == "all_gather":
        yield axes, sum(map(_size, equation.outvars))
    else:
        yield axes, sum(map(_size, equation.invars))
