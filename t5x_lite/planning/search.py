"""Search for the best mesh of a run, and plan the run on increasing numbers of devices."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from t5x_lite.config import Mesh, RunConfig
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import MOST_CHIPS, Topology
from t5x_lite.model.check import undivided
from t5x_lite.planning.plan import Assumptions, Plan, make_plan
from t5x_lite.progress import bar, say
from t5x_lite.resolve import resolve_without_text

_MOST_TENSOR = 16


def search(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
) -> list[Plan]:
    """Plan a run on every mesh that divides it, with and without remat, and return the plans that
    fit, the fastest first.

    Each plan has the fewest microbatches with which it fits. A mesh with a sequence axis is planned
    without remat only if the config does not use remat.

    Args:
        config: the config of the run.
        topology: the devices.
        assumed: values that override hardware.py, and the expected MFU.

    Raises:
        UserError: if no plan fits; it states the memory or the number of devices that is needed.
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
            for plan in _in_microbatches(config, topology, mesh, remat, assumed):
                if closest is None or plan.memory_in_all < closest.memory_in_all:
                    closest = plan
                if plan.fits is not False:
                    fitting.append(plan)
                    break
    # Nothing fits: report how much memory is needed, or how many devices the state needs.
    if not fitting:
        if closest is None:
            reason = f"no mesh of {topology.count} devices divides this model and batch"
            raise UserError(BAD_CONFIG, f"--search: {reason}; change data.batch_size")
        room, state = closest.room, closest.state_in_all / topology.count
        least = f"{closest.memory_in_all / 2**30:.1f} GiB"
        reason = f"the smallest plan takes {least} per device, {arranged(closest)}"
        if room is not None and state > room:
            devices = math.ceil(closest.state_in_all / room)
            size = f"{state / 2**30:.1f} GiB"
            reason = f"the state alone takes {size} per device; {devices} devices can hold it"
        raise UserError(BAD_CONFIG, f"--search: nothing fits {topology}: {reason}; use more")
    return sorted(fitting, key=_time)


def _time(plan: Plan) -> tuple[float, float, int]:
    """Return the sort key of a plan: its longest time, the sum of its times, and its memory."""
    seconds = plan.seconds.values()
    return max(seconds, default=0.0), sum(seconds), plan.memory_in_all


def _ways(config: RunConfig, topology: Topology) -> Iterator[tuple[Mesh, bool]]:
    """Yield every mesh that divides the model and the batch, with and without remat."""
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
            # Use a sequence axis only if the batch cannot be split over twice as many devices.
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
) -> Iterator[Plan]:
    """Yield plans with increasing numbers of microbatches, until the rows can no longer be divided
    or the state by itself does not fit.
    """
    model = dataclasses.replace(config.model, remat=remat)
    rows_of_device = config.data.batch_size * mesh.sequence * mesh.tensor // topology.count
    microbatches = 1
    while rows_of_device % microbatches == 0:
        training = dataclasses.replace(config.training, microbatches=microbatches)
        varied = dataclasses.replace(config, mesh=mesh, model=model, training=training)
        try:
            plan = make_plan(varied, topology, assumed)
        except UserError:  # something does not divide, such as rows over the sequence axis
            return
        yield plan
        if plan.room is not None and plan.state > plan.room:
            return
        # Skip numbers of microbatches that cannot be enough: the memory besides the state shrinks
        # at most in proportion to them. Only powers of two are tried.
        spare = (plan.room or math.inf) - plan.state
        over = (plan.memory_in_all - plan.state) / max(spare, 1)
        microbatches *= max(2, 2 ** math.floor(math.log2(max(over, 1))))


def weak_scaling(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
) -> list[Plan]:
    """Plan a run on 8, 16, …, 4,096 devices with a constant number of rows per device, so that the
    batch grows with the devices.

    The tensor and sequence axes keep their sizes. If the config uses fsdp, this axis takes as much
    of the rest of a slice as divides the model. Device counts that the other axes do not divide are
    left out.

    Args:
        config: the config of the run.
        topology: the devices that the config's batch size is meant for.
        assumed: values that override hardware.py, and the expected MFU.

    Raises:
        UserError: if the rows or the model cannot be divided over the devices.
    """
    model = resolve_without_text(config).model
    rows_of_device = config.data.batch_size / topology.count
    plans = []
    for count in (2**power for power in range(3, 13)):
        larger, mesh = _of_size(topology, count), config.mesh
        if count % (mesh.sequence * mesh.tensor):
            continue
        # Give the rest of a slice to fsdp, as far as it divides the model, and then to data.
        if mesh.preset in ("", "fsdp"):
            within = larger.count // larger.slices // (mesh.sequence * mesh.tensor)
            fsdp = max(within, 1) if mesh.fsdp > 1 or mesh.preset else 1
            while undivided(model, fsdp=fsdp):
                fsdp //= 2
            mesh = dataclasses.replace(mesh, preset="", data=-1, fsdp=fsdp)
        rows = max(round(rows_of_device * count), 1)
        data = dataclasses.replace(config.data, batch_size=rows)
        varied = dataclasses.replace(config, data=data, mesh=mesh)
        plans.append(make_plan(varied, larger, assumed))
    return plans


def _of_size(topology: Topology, count: int) -> Topology:
    """Return a topology of `count` devices of the same kind.

    A topology of several TPU slices gets more slices of the same shape, if that gives the count.
    Otherwise TPUs form one slice with sides as equal as possible, or several equal slices if one
    would be too large.
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
    """Return the settings that arrange the devices as in a plan."""
    training = plan.config.training
    settings = [f"mesh.{axis}={size}" for axis, size in plan.mesh.items() if size > 1]
    settings.append(f"model.remat={plan.config.model.remat}")
    if training.microbatches > 1:
        settings.append(f"training.microbatches={training.microbatches}")
    return " ".join(settings)


def _mesh_in_words(mesh: Mesh) -> str:
    """Describe a mesh for the progress bar."""
    return f"fsdp {mesh.fsdp}, sequence {mesh.sequence}, tensor {mesh.tensor}"


def _divisors(count: int) -> list[int]:
    """Return all divisors of a number in ascending order."""
    return [size for size in range(1, count + 1) if count % size == 0]
