"""Which mesh, and on how many devices? Plans of one run, arranged in many ways, and on more and
more devices.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

from t5x_lite.config import Mesh, RunConfig
from t5x_lite.config.grammar import AllowedCode
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import MOST_CHIPS, Topology
from t5x_lite.model.check import undivided
from t5x_lite.planning.plan import Assumptions, Plan, make_plan
from t5x_lite.progress import bar
from t5x_lite.resolve import resolve_without_text

_MOST_TENSOR = 16


def search(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
    allowed: AllowedCode = None,
    say: Callable[[str], None] = print,
) -> list[Plan]:
    """Plans of the run for every mesh that divides it, with remat and without, each in as few
    microbatches as fit; those that take the least time first.

    Raises:
        UserError: where none fits, with what is missing.
    """
    ways = list(_ways(config, topology))
    fitting, closest = [], None
    progress = bar("plan")
    task = progress.add_task("", total=len(ways), line="")
    with progress:
        if progress.disable:
            say(f"plan: {len(ways)} ways to arrange {topology.count} devices")
        for mesh, remat in ways:
            progress.update(task, advance=1, line=_mesh_in_words(mesh))
            for plan in _in_microbatches(config, topology, mesh, remat, assumed, allowed):
                if closest is None or plan.memory_in_all < closest.memory_in_all:
                    closest = plan
                if plan.fits is not False:
                    fitting.append(plan)
                    break
    if not fitting:
        if closest is None:
            reason = f"no mesh of {topology.count} devices divides this model and batch"
            raise UserError(BAD_CONFIG, f"--search: {reason}; change data.batch_size")
        room, state = closest.room, closest.state_in_all / topology.count
        reason = f"the least found is {closest.memory_in_all / 2**30:.1f} GiB, {arranged(closest)}"
        if room is not None and state > room:
            devices = math.ceil(closest.state_in_all / room)
            reason = f"the state alone takes {state / 2**30:.1f} GiB of each; {devices} hold it"
        raise UserError(BAD_CONFIG, f"--search: nothing fits {topology}: {reason}; take more")
    return sorted(fitting, key=_time)


def _time(plan: Plan) -> tuple[float, float, int]:
    """What bounds it, then all that goes on beside that, then room."""
    seconds = plan.seconds.values()
    return max(seconds, default=0.0), sum(seconds), plan.memory_in_all


def _ways(config: RunConfig, topology: Topology) -> Iterator[tuple[Mesh, bool]]:
    """Meshes that divide the model, whose share of the state has room."""
    model, devices = resolve_without_text(config).model, topology.count
    per_slice = devices // topology.slices
    for tensor, sequence in itertools.product(_divisors(per_slice), repeat=2):
        if tensor > _MOST_TENSOR or undivided(model, tensor=tensor):
            continue
        if per_slice % (tensor * sequence):
            continue
        for fsdp in _divisors(per_slice // (tensor * sequence)):
            data = devices // (fsdp * tensor * sequence)
            rows = config.data.batch_size
            # A row is only shared where there are more devices than rows.
            is_needed = sequence == 1 or rows % (2 * data * fsdp) != 0
            if undivided(model, fsdp=fsdp) or rows % (data * fsdp) or not is_needed:
                continue
            mesh = dataclasses.replace(
                config.mesh, preset="", data=-1, fsdp=fsdp, sequence=sequence, tensor=tensor
            )
            yield mesh, True
            if not config.model.remat or sequence == 1:
                yield mesh, False


def _in_microbatches(
    config: RunConfig,
    topology: Topology,
    mesh: Mesh,
    remat: bool,
    assumed: Assumptions,
    allowed: AllowedCode,
) -> Iterator[Plan]:
    """Plans with more and more microbatches, until nothing is left to divide or the state alone is
    too large.
    """
    model = dataclasses.replace(config.model, remat=remat)
    rows_of_device = config.data.batch_size * mesh.sequence * mesh.tensor // topology.count
    microbatches = 1
    while rows_of_device % microbatches == 0:
        training = dataclasses.replace(config.training, microbatches=microbatches)
        varied = dataclasses.replace(config, mesh=mesh, model=model, training=training)
        try:
            plan = make_plan(varied, topology, assumed, allowed)
        except UserError:  # rows that cannot be shared, and whatever else does not divide
            return
        yield plan
        if plan.room is not None and plan.state > plan.room:
            return
        # As many as may be enough.
        spare = (plan.room or math.inf) - plan.state
        over = (plan.memory_in_all - plan.state) / max(spare, 1)
        microbatches *= max(2, 2 ** math.floor(math.log2(max(over, 1))))


def weak_scaling(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
    allowed: AllowedCode = None,
) -> list[Plan]:
    """Plans of the run on 8, 16, … 4,096 devices, each with as many rows as on this topology: the
    batch grows with them. What the mesh has of tensor and sequence stays; fsdp, where the config
    has it, takes as much of the rest of a slice as divides the model.

    Raises:
        UserError: where rows or model do not divide.
    """
    model = resolve_without_text(config, allowed).model
    rows_of_device = config.data.batch_size / topology.count
    plans = []
    for count in (2**power for power in range(3, 13)):
        larger, mesh = _of_size(topology, count), config.mesh
        if count % (mesh.sequence * mesh.tensor):
            continue
        if mesh.preset in ("", "fsdp"):
            within = larger.count // larger.slices // (mesh.sequence * mesh.tensor)
            fsdp = max(within, 1) if mesh.fsdp > 1 or mesh.preset else 1
            while undivided(model, fsdp=fsdp):
                fsdp //= 2
            mesh = dataclasses.replace(mesh, preset="", data=-1, fsdp=fsdp)
        rows = max(round(rows_of_device * count), 1)
        data = dataclasses.replace(config.data, batch_size=rows)
        varied = dataclasses.replace(config, data=data, mesh=mesh)
        plans.append(make_plan(varied, larger, assumed, allowed))
    return plans


def _of_size(topology: Topology, count: int) -> Topology:
    """So many devices of the same kind. Of TPUs slices like those that are given, where there are
    several; else one with sides as alike as possible, and several of the largest.
    """
    chip = topology.chip
    if not chip.is_tpu:
        if topology.name == "cpu":
            return dataclasses.replace(topology, bounds=(count,))
        node = math.gcd(topology.bounds[-1], count)
        return dataclasses.replace(topology, bounds=(count // node, node))
    chips, slices = count // topology.cores, 1
    chips_of_slice = math.prod(topology.bounds)
    if topology.slices > 1 and chips > chips_of_slice and chips % chips_of_slice == 0:
        return dataclasses.replace(topology, slices=chips // chips_of_slice)
    while chips // slices > MOST_CHIPS[topology.name]:
        slices *= 2
    bounds = [1] * chip.dimensions
    left, side = chips // slices, 0
    while left > 1:
        bounds[side % len(bounds)] *= 2
        left, side = left // 2, side + 1
    return dataclasses.replace(topology, bounds=tuple(sorted(bounds)), slices=slices)


def arranged(plan: Plan) -> str:
    """How a plan is arranged, as settings."""
    training = plan.config.training
    settings = [f"mesh.{axis}={size}" for axis, size in plan.mesh.items() if size > 1]
    settings.append(f"model.remat={plan.config.model.remat}")
    if training.microbatches > 1:
        settings.append(f"training.microbatches={training.microbatches}")
    return " ".join(settings)


def _mesh_in_words(mesh: Mesh) -> str:
    return f"fsdp {mesh.fsdp}, sequence {mesh.sequence}, tensor {mesh.tensor}"


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]
