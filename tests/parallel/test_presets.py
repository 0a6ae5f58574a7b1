from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from t5x_lite.config import Mesh, Model
from t5x_lite.errors import UserError
from t5x_lite.model.check import shares_rows, undivided
from t5x_lite.parallel.presets import Workload, arrange, memory_of
from t5x_lite.resolve import resolve_model

GiB = 2**30
MODEL = resolve_model(
    Model(d_model=96, num_heads=12, num_kv_heads=4, head_dim=8), vocab_size=512, max_length=64
)


def devices(count: int, kind: str = "TPU v5 lite", platform: str = "tpu"):
    one = {"device_kind": kind, "platform": platform, "memory_stats": lambda: None}
    return [SimpleNamespace(**one)] * count


def workload(rows, lengths, state_bytes, model=MODEL):
    return Workload(rows, lengths, state_bytes, partial(undivided, model), shares_rows(model))


def sizes(preset, count=8, rows=64, lengths=(1024,), state=1, **of_devices):
    work = workload(rows, lengths, state * GiB)
    mesh, reason = arrange(Mesh(preset=preset), work, devices(count, **of_devices))
    assert reason.startswith(f"mesh.preset={preset}: ")
    return mesh.data, mesh.fsdp, mesh.sequence, mesh.tensor


def test_presets():
    assert arrange(Mesh(fsdp=2), workload(8, (8,), 1), devices(8)) == (Mesh(fsdp=2), "")
    assert sizes("data") == (8, 1, 1, 1)
    assert sizes("fsdp") == (1, 8, 1, 1)
    # 12 heads are divided by 4, of the divisors of 16 up to 8; 4 key heads too.
    assert sizes("fsdp_tensor", 16) == (1, 4, 1, 4)
    assert sizes("long_context", rows=64) == (1, 4, 2, 1)
    assert sizes("long_context", rows=2) == (1, 2, 4, 1)


@pytest.mark.parametrize(
    ("state", "rows", "expected"),
    [
        (7, 64, (8, 1, 1, 1)),  # half of 16 GiB is enough
        (9, 64, (4, 2, 1, 1)),
        (60, 64, (1, 8, 1, 1)),
        (600, 64, (1, 8, 1, 1)),  # and may not fit
        (9, 4, (2, 2, 2, 1)),  # two devices share each row
    ],
)
def test_auto_splits_parameters_as_little_as_fits(state, rows, expected):
    assert sizes("auto", state=state, rows=rows) == expected


@pytest.mark.parametrize("preset", ["data", "fsdp", "fsdp_tensor", "long_context", "auto"])
def test_slices_differ_along_data_alone(preset):
    two_slices = [
        SimpleNamespace(**vars(device), slice_index=number // 8)
        for number, device in enumerate(devices(16))
    ]
    work = workload(64, (1024,), 40 * GiB)
    mesh, _ = arrange(Mesh(preset=preset), work, two_slices)
    assert mesh.data % 2 == 0
    assert mesh.data * mesh.fsdp * mesh.sequence * mesh.tensor == 16


def test_auto_leaves_rows_alone_that_cannot_be_shared():
    model = replace(MODEL, attention_dropout=0.1)
    work = workload(4, (1024,), 9 * GiB, model)
    mesh, _ = arrange(Mesh(preset="auto"), work, devices(8))
    assert mesh.sequence == 1


def test_auto_says_why():
    work = workload(64, (1024,), 600 * GiB)
    reason = arrange(Mesh(preset="auto"), work, devices(8))[1]
    assert "take 600.00 GiB, a device has 16 GiB" in reason
    assert "may not fit" in reason
    assert sizes("auto", kind="cpu", platform="cpu", state=600) == (8, 1, 1, 1)


def test_memory_of_devices():
    kinds = {"TPU v4": 30.75, "TPU v5 lite": 15.75, "TPU v5p": 95.73, "TPU v6 lite": 31.24}
    for kind, gib in kinds.items():
        assert memory_of(*devices(1, kind)) == gib * GiB
    assert memory_of(*devices(1, "abacus")) is None
    one_that_is_here = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 5})
    assert memory_of(one_that_is_here) == 5


def test_what_cannot_be_arranged_is_named():
    with pytest.raises(UserError, match="8 devices cannot share rows of 6 positions, 3 of them"):
        sizes("long_context", rows=3, lengths=(6,))
    with pytest.raises(UserError, match=r"mesh.fsdp: got 2, but it follows from mesh.preset=auto"):
        Mesh(preset="auto", fsdp=2)
