"""Analyse a traced training step (its jaxpr): what one device sends, how many bytes move through
its memory, and its peak memory. This takes a second and needs no compiler.

A compiler fuses operations. The analysis therefore guesses what will happen to each value:

    matrix products, gathers, scatters,     are written to memory
    kernels, loops, collectives
    elementwise operations                  are computed where they are read, but written if one of
                                            the above reads them or the program returns them
    reshapes, transposes                    are the same array

Memory is live from the operation that writes it to the last one that reads it, or that reads a
value computed from it without being written. A loop over layers writes its stacked results, which
are kept for the backward pass.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from jax.extend.core import Literal
from jax.interpreters.partial_eval import dce_jaxpr

# Operations whose result is the operand itself, unchanged or in another shape or order.
_VIEWS = {
    *("reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "stop_gradient"),
    *("optimization_barrier", "layout_constraint", "sharding_constraint", "name", "rev"),
}
_SENDS = {"all_gather", "reduce_scatter", "psum", "pmax", "pmin", "ppermute", "all_to_all"}
_LOOPS = {"scan", "while"}
# Operations that read their operands from memory and write their results to it.
_WRITTEN = {
    *("dot_general", "ragged_dot_general", "conv_general_dilated", "pallas_call", "gather"),
    *("scatter", "scatter-add", "scatter-mul", "scatter-max", "scatter-min", "sort", "top_k"),
    *("dynamic_update_slice", "fft", "cholesky", "triangular_solve", "ffi_call", "custom_call"),
    *_SENDS,
    *_LOOPS,
}
# Operations whose results are written, but whose operands can be computed on the fly.
_REDUCTIONS = {
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"),
    *("argmax", "argmin", "cumsum", "cumlogsumexp", "cummax", "cumprod"),
}


class Value(NamedTuple):
    """An array that the program writes to memory."""

    size: int  # in bytes
    shape: str  # with its dtype, such as bfloat16[16,512,768]
    operation: str  # the operation that writes it
    place: str  # where in the model, such as encoder/layers/attention


@dataclass
class Step:
    """The work of one device in a training step.

    Attributes:
        sent: bytes by the mesh axes that they cross, counted as in traffic.py.
        moved: bytes read from memory or written to it.
        peak: peak memory in bytes, without the arguments.
        alive: the arrays in memory at the peak; `of_device` sorts them, the largest first.
    """

    sent: dict[tuple[str, ...], int] = field(default_factory=lambda: defaultdict(int))
    moved: int = 0
    peak: int = 0
    alive: list[Value] = field(default_factory=list)


def of_device(jaxpr: Any) -> Step:
    """Analyse what one device does in a training step.

    Args:
        jaxpr: the traced step, from Program.trace().jaxpr.
    """
    operations, arguments, results = _flat(_on_one_device(jaxpr.jaxpr))
    step = _Run(operations, arguments, results, in_loop=False).step
    step.alive.sort(key=lambda value: -value.size)
    return step


class _Operation(NamedTuple):
    """An equation of a flat program, whose values are numbered."""

    kind: str  # name of the jax primitive
    reads: list[int]
    writes: list[int]
    equation: Any


def _on_one_device(jaxpr: Any) -> Any:
    """Return the body of the shard_map, which each device runs, or the whole program if there is no
    shard_map.
    """
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
    """Return a jaxpr without the constants that a ClosedJaxpr holds."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _inlined(equation: Any) -> Any:
    """Return the program that an equation only calls; None if it is an operation of its own."""
    params = equation.params
    if equation.primitive.name in ("scan", "while", "shard_map", "pallas_call"):
        return None
    if equation.primitive.name == "cond":  # the last branch is the one for accelerators
        return _jaxpr(params["branches"][-1])
    for name in ("jaxpr", "call_jaxpr", "callee"):
        if name in params:
            return _jaxpr(params[name])
    return None


def _flat(jaxpr: Any) -> tuple[list[_Operation], list[int], list[int]]:
    """Flatten a program: inline everything it calls, and drop operations whose results are unused.

    Returns:
        the operations in program order, the argument numbers and the result numbers.
    """
    jaxpr = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]
    operations: list[_Operation] = []
    numbers = count()

    def walk(jaxpr: Any, arguments: Sequence[int]) -> list[int]:
        """Append the operations of a program called with `arguments`, and return its results."""
        values = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= {variable: next(numbers) for variable in jaxpr.constvars}

        def number(atom: Any) -> int:
            return next(numbers) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            reads = [number(atom) for atom in equation.invars]
            inner = _inlined(equation)
            if inner is not None:
                # A cond has one more operand than its branches: first, the index of the branch.
                results = walk(inner, reads[len(reads) - len(inner.invars) :])
            else:
                results = [next(numbers) for _ in equation.outvars]
                operations.append(_Operation(equation.primitive.name, reads, results, equation))
            values |= zip(equation.outvars, results, strict=True)
        return [number(atom) for atom in jaxpr.outvars]

    arguments = [next(numbers) for _ in jaxpr.invars]
    return operations, arguments, walk(jaxpr, arguments)


def _size(atom: Any) -> int:
    """Return the bytes of a jaxpr's variable or literal."""
    return math.prod(atom.aval.shape) * getattr(atom.aval.dtype, "itemsize", 8)


class _Run:
    """The simulated execution of a flat program on one device.

    Attributes:
        step: the work of the device in it.

    Args:
        operations: the program, in program order.
        arguments: the numbers of its arguments.
        results: the numbers of its results.
        in_loop: True for the body of a loop, whose results go straight into the loop's arrays.
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
        """Return the numbers of the values that are written to memory."""
        # The final consumers of each value: a view passes its own consumers on to its operand.
        readers: dict[int, list[str]] = defaultdict(list)
        for result in self._results:
            readers[result].append("a loop" if self._in_loop else "the program")
        written = set()
        for operation in reversed(self.operations):
            # All consumers are known by now, because the operations are visited last to first.
            for result in operation.writes:
                read_by = readers[result]
                is_read_whole = any(kind in _WRITTEN | {"the program"} for kind in read_by)
                if operation.kind in _VIEWS:
                    continue
                if operation.kind == "dot_general":  # a single consumer may be fused into it
                    is_written = is_read_whole or len(read_by) != 1 or read_by == ["a loop"]
                elif operation.kind in _WRITTEN | _REDUCTIONS:
                    is_written = True
                else:
                    is_written = is_read_whole
                if is_written:
                    written.add(result)
            # Make this operation, or the consumers of this view, consumers of its operands.
            for place, value in enumerate(operation.reads):
                if operation.kind in _VIEWS:
                    matching = operation.writes[min(place, len(operation.writes) - 1)]
                    readers[value] += readers[matching]
                else:
                    readers[value].append(_reader(operation, place))
        return written

    def _scheduled(self) -> list[_Operation]:
        """Return the operations in the order in which they are likely to run.

        A reduce-scatter moves up to the operation that writes its operand, so that a gradient is
        sharded as soon as it is computed and need not be kept whole. Operations whose results are
        not written move up in the same way.
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
        """Return, for each value, the written values and arguments that it is computed from."""
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
        """Step through the operations, and record traffic, memory movement and peak memory."""
        # Find the last operation that reads each written value. Results are kept until the end.
        step = Step()
        last_read: dict[int, int] = {}
        for index, operation in enumerate(self.operations):
            for value in operation.reads:
                last_read |= dict.fromkeys(self._sources[value], index)
        for value in self._results:
            last_read |= dict.fromkeys(self._sources[value], len(self.operations))

        # Allocate what each operation writes, and free what it is the last to read.
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
        """Return the values that an operation may overwrite with its results: the inputs of an
        elementwise operation, and the values that a loop carries.
        """
        reads = operation.reads
        if operation.kind in (_WRITTEN | _REDUCTIONS) - {"while"}:
            reads = []
        if operation.kind == "scan":
            constants, carried = _loop_operands(operation.equation)
            reads = operation.reads[constants : constants + carried]
        return frozenset().union(*(self._sources[n] for n in reads))

    def _inside(self, operation: _Operation, step: Step) -> Step:
        """Add what an operation sends to `step`; for a loop, also what its body sends and moves.

        Returns:
            what the body of a loop does, for its peak memory; empty for any other operation.
        """
        equation = operation.equation
        if operation.kind in _SENDS:
            for axes, sent in _sent(equation):
                step.sent[axes] += sent
        if operation.kind not in _LOOPS:
            return Step()
        # Analyse the body of the loop once, and multiply by the trip count. The trip count of a
        # while loop is not known, so its body counts once.
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
    """Return the kind of operation that reads an operand; a scan's constants are read in its body.

    Args:
        operation: the operation.
        place: the position of the operand among those that it reads.
    """
    if operation.kind == "scan" and place < _loop_operands(operation.equation)[0]:
        return "a loop"
    return operation.kind


def _loop_operands(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried.

    The other operands and results are stacked. They are counted by their additional axis, which
    they have outside the loop but not in its body.
    """
    body = _jaxpr(equation.params["jaxpr"])

    def stacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(a.aval.shape) != len(b.aval.shape) for a, b in pairs)

    carried = len(body.outvars) - stacked(equation.outvars, body.outvars)
    return len(body.invars) - stacked(equation.invars, body.invars) - carried, carried


def _value(operation: _Operation, atom: Any) -> Value:
    """Describe a result of an operation."""
    place = str(operation.equation.source_info.name_stack)
    shape = ",".join(map(str, atom.aval.shape))
    return Value(_size(atom), f"{atom.aval.dtype}[{shape}]", operation.kind, place)


def _converted_ahead(equation: Any, body: Any) -> Iterator[Value]:
    """Yield the parameters that a loop converts to a narrower dtype: compilers convert all layers'
    parameters at once, before the loop.
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
    """Yield the mesh axes that a collective crosses, and its bytes.

    An all-reduce sends its operands twice, an all-gather its result, and all others their operands.
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
