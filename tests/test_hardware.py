import pytest

from t5x_lite.errors import UserError
from t5x_lite.hardware import CHIPS, axis_bandwidth, chip_of, parse_topology


@pytest.mark.parametrize(
    ("text", "count"),
    [("v5e:4x4", 16), ("v5p:4x4x8", 128), ("2*v6e:16x16", 512), ("h100:8x8", 64), ("cpu:8", 8),
     ("v3:2x2", 8), ("7x:2x2x1", 8)],
)  # fmt: skip
def test_topologies(text, count):
    topology = parse_topology(text)
    assert topology.count == count == len(topology.devices)
    assert str(topology) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v5e", "expected such as v5e:4x4"),
        ("v5x:4x4", "no chip 'v5x'; did you mean v5"),
        ("v5e:4x4x4", "got 3 sides, v5e has 2"),
        ("h100:8", "got 1 sides, h100 has 2"),
        ("0*v5e:4x4", "has no device"),
        ("v5e:0x4", "has no device"),
        ("2*h100:8x8", "only TPUs come in slices"),
    ],
)
def test_what_is_no_topology_is_refused(text, reason):
    with pytest.raises(UserError, match=f"--topology={text}".replace("*", r"\*")) as refused:
        parse_topology(text)
    assert reason in str(refused.value)


def test_chips_are_found_by_what_jax_calls_them():
    assert chip_of("TPU v5p") is chip_of("TPU v5") is CHIPS["v5p"]
    assert chip_of("TPU v5e") is chip_of("TPU v5 lite") is CHIPS["v5e"]
    assert chip_of("NVIDIA H100 NVL") is CHIPS["h100_nvl"]
    assert chip_of("abacus") is None


@pytest.mark.parametrize(
    ("name", "is_ring"),
    [
        ("v5p:4x4x4", (True,) * 3),
        ("v5p:4x4x8", (True,) * 3),
        ("v5p:2x4x4", (False,) * 3),  # a mesh: not all sides are multiples of 4
        ("v5e:8x16", (False, True)),
        ("v5e:4x4", (False, False)),
    ],
)
def test_which_sides_are_rings(name, is_ring):
    assert parse_topology(name).is_ring == is_ring


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v5e:16x32", "512 chips, where there are at most 256; name several slices, 2*v5e:…"),
        ("v5p:99999x9999x9999", "where there are at most 8,960"),
        ("9999999*v5p:2x2x1", "39,999,996 devices, expected at most 65,536"),
        ("h100:1x16", "a node has at most 8 GPUs, here it is 16"),
        ("v5litepod-16", "an accelerator type, whose shape is needed"),
    ],
)
def test_what_nobody_has_is_refused(text, reason):
    with pytest.raises(UserError) as refused:
        parse_topology(text)
    assert reason in str(refused.value)


def test_names_are_read_in_any_case():
    assert parse_topology("V5E:4x4") == parse_topology("v5e:4x4")


def test_peaks_follow_from_matrix_units():
    """v4 and v5p: two cores of four units of 128 × 128; v5e: one; v3: two units to a core."""
    units = {"v3": 2, "v4": 8, "v5e": 4, "v5p": 8}
    for name, count in units.items():
        chip = CHIPS[name]
        assert chip.peak == pytest.approx(count * 2 * 128**2 * chip.clock, rel=0.01)


def test_an_axis_of_a_torus_has_its_rings_and_one_of_gpus_its_node():
    ring, line = parse_topology("v5p:8x8x8"), parse_topology("v5e:4x4")
    assert axis_bandwidth(ring, {"fsdp": 512}, "fsdp") == 6 * 100e9
    assert axis_bandwidth(line, {"fsdp": 16}, "fsdp") == 2 * 50e9  # no ends are connected
    two_slices = parse_topology("2*v5e:4x4")
    assert axis_bandwidth(two_slices, {"data": 2, "fsdp": 16}, "data") == 3.125e9
    # Of 16 chips a slice each sends a sixteenth over the network, after a sum in the slice.
    both = axis_bandwidth(two_slices, {"data": 32}, "data")
    assert both == pytest.approx(1 / (1 / (2 * 50e9) + 1 / (16 * 3.125e9)))
    nodes = parse_topology("h100:4x8")
    assert axis_bandwidth(nodes, {"fsdp": 4, "tensor": 8}, "tensor") == 450e9
    assert axis_bandwidth(nodes, {"fsdp": 4, "tensor": 8}, "fsdp") == 50e9
    assert axis_bandwidth(nodes, {"fsdp": 32, "tensor": 1}, "fsdp") == 400e9
