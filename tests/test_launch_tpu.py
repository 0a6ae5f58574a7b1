"""launch/tpu_vm and launch/queued, with a gcloud that plays a scene and writes down its words."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, slow

# Each line of the scene: words that a command has to contain, in order of preference, and what is
# answered, once or always: [words, output, error, exit code, seconds].
GCLOUD = """#!{python} -IS
import json, pathlib, sys, time
here = pathlib.Path({directory!r})
words = sys.argv[1:]
scene = json.loads((here / "scene.json").read_text())
fits = lambda line: all(any(part in word for word in words) for part in line["on"])
line = next(filter(fits, scene), {{}})
if line and not line.get("always"):
    scene.remove(line)
    rest = here / "rest.json"  # it may be killed at any moment
    rest.write_text(json.dumps(scene))
    rest.replace(here / "scene.json")
# Written last: a test that has read it may kill this, and its line must be gone.
with open(here / "asked.jsonl", "a") as file:
    file.write(json.dumps(words) + "\\n")
if line:
    time.sleep(line.get("seconds", 0))
    print(line.get("out", ""))
    print(line.get("err", ""), file=sys.stderr)
    sys.exit(line.get("code", 0))
"""
MISSING = {"on": ["describe"], "err": "ERROR: (gcloud) NOT_FOUND: Resource not found.", "code": 1}
READY = {"on": ["describe"], "out": '{"state": "READY"}'}
RUN = ("--", "train", "--config=gpt_tiny", "--workdir=gs://bucket/a b")


def queue(state, **more):
    said = json.dumps({"state": {"state": state}})
    return {"on": ["queued-resources", "describe"], "out": said} | more


@pytest.fixture
def launch(tmp_path, run_script):
    """A function that runs a command of launch/ in a scene: its exit code, what was asked of
    gcloud, and what it said.
    """
    (tmp_path / "bin").mkdir()
    gcloud = tmp_path / "bin/gcloud"
    gcloud.write_text(GCLOUD.format(python=sys.executable, directory=str(tmp_path)))
    gcloud.chmod(0o755)

    def play(name, *words, scene=(), programs=":/usr/bin:/bin", code=0):
        set_the_scene(scene)
        done = run_script(name, *words, cwd=tmp_path, path=f"{tmp_path / 'bin'}{programs}")
        assert done.returncode == code, done.stderr
        return asked(), done.stdout, done.stderr

    def begin(name, *words, scene, nohup=False):
        """In a process of its own, which signals can be sent to."""
        set_the_scene(scene)
        # As it is, but for waiting. What started the tests may ignore signals, which is inherited.
        script = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if nohup else 'SIG_DFL'}); "
            f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'launch')!r}); import tpu, time; "
            "time.sleep = lambda seconds: None; "
            f"sys.argv[0] = 'launch/{name}'; "
            f"runpy.run_path({str(ROOT / 'launch' / name)!r}, run_name='__main__')"
        )
        return subprocess.Popen(
            [sys.executable, "-c", script, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env=os.environ | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        )  # fmt: skip

    def set_the_scene(scene):
        (tmp_path / "scene.json").write_text(json.dumps(list(scene)))
        (tmp_path / "asked.jsonl").write_text("")

    def asked():
        return [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]

    play.begin, play.asked = begin, asked
    return play


def verbs(asked) -> list[str]:
    """What was asked, in words: create, ssh install, …"""
    said = []
    for words in asked:
        assert words[:2] == ["compute", "tpus"]
        verb = words[3]
        script = next((word for word in words if word.startswith("--command=")), "")
        marks = {"pip install": "install", "setsid": "start", "tail ": "follow", "pkill": "stop"}
        for mark, name in {**marks, "sleep 1": "code", "running": "find"}.items():
            if mark in script:
                verb = name
                break
        said.append(verb)
    return said


WHOLE = ["scp", "install", "start", "follow", "code"]


def test_a_vm_is_created_used_and_deleted(launch):
    scene = [MISSING, {"on": ["sleep 1"], "out": "0\n0"}]
    asked, _, _ = launch("tpu_vm", "my-tpu", "--zone=z", "--spot", "--project=p", *RUN, scene=scene)
    assert verbs(asked) == ["describe", "create", *WHOLE, "delete"]
    assert all({"--zone=z", "--project=p"} <= set(words) for words in asked)
    create, start = asked[1], asked[4]
    assert {"--accelerator-type=v5litepod-8", "--version=v2-alpha-tpuv5-lite", "--spot"} <= set(
        create
    )
    # The command arrives whole, whatever is in it.
    script = next(word for word in start if word.startswith("--command=")).removeprefix(
        "--command="
    )
    inner = shlex.split(script[script.index("sh -c") :].partition(" < ")[0])[2]
    words = shlex.split(inner.partition(" > ")[0])
    assert words[1:3] == ["-m", "t5x_lite"]
    assert words[3:] == ["train", "--config=gpt_tiny", "--workdir=gs://bucket/a b", "--distributed"]
    assert "--worker=all" in start


def test_a_vm_that_is_there_is_used_and_kept(launch):
    scene = [READY, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "mine", "--zone=z", *RUN, scene=scene)
    assert verbs(asked) == ["describe", "find", *WHOLE]
    scene = [READY, {"on": ["echo running"], "out": "running"}, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "mine", "--zone=z", *RUN, scene=scene)
    assert verbs(asked) == ["describe", "find", "follow", "code"]  # it goes on there
    scene = [MISSING, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "mine", "--zone=z", "--keep", *RUN, scene=scene)
    assert "delete" not in verbs(asked)


def test_what_is_not_in_a_bucket_is_fetched(launch, tmp_path):
    scene = [MISSING, {"on": ["sleep 1"], "out": "0"}]
    workdir = "--workdir=runs/it's one"
    words = ("tpu_vm", "m", "--zone=z", "--", "train", "--config=gpt_tiny", workdir)
    asked, _, _ = launch(*words, scene=scene)
    assert verbs(asked)[-2:] == ["scp", "delete"]
    assert asked[-2][4:7] == ["--recurse", "m:t5x_lite/runs/it's one", "runs"]
    # What could not be fetched is not deleted with its VM.
    failed = {"on": ["--recurse"], "err": "no space left", "code": 1}
    asked, _, err = launch(*words, scene=[*scene, failed], code=1)
    assert verbs(asked)[-1] == "scp"
    assert "fetch: no space left" in err
    assert "m is kept, and costs: t5x_lite/runs/it's one there was not fetched" in err


def test_quota_leaves_nothing_behind(launch):
    quota = {"on": ["create"], "err": "ERROR: (gcloud) Quota limit 'TPUV5' exceeded.", "code": 1}
    gone = {"on": ["delete"], "err": "NOT_FOUND", "code": 1}
    asked, _, err = launch("tpu_vm", "m", "--zone=z", *RUN, scene=[MISSING, quota, gone], code=1)
    assert verbs(asked) == ["describe", "create", "delete"]
    assert err.strip() == "launch/tpu_vm: create: ERROR: (gcloud) Quota limit 'TPUV5' exceeded."


def test_what_cannot_be_deleted_is_said(launch):
    stuck = {"on": ["delete"], "err": "ERROR: deadline exceeded", "code": 1}
    scene = [MISSING, {"on": ["sleep 1"], "out": "0"}, stuck]
    _, _, err = launch("tpu_vm", "m", "--zone=z", *RUN, scene=scene)
    assert "m may still be there and cost" in err


def test_a_worker_that_fails_gives_its_exit_code(launch):
    scene = [MISSING, {"on": ["sleep 1"], "out": "0\n76\n0"}]
    asked, _, _ = launch("tpu_vm", "m", "--zone=z", *RUN, scene=scene, code=76)
    assert verbs(asked)[-1] == "delete"


def test_an_installation_that_fails_ends_it(launch):
    failed = {"on": ["pip install"], "err": "ERROR: No matching distribution", "code": 1}
    asked, _, err = launch("tpu_vm", "m", "--zone=z", *RUN, scene=[MISSING, failed], code=1)
    assert verbs(asked) == ["describe", "create", "scp", "install", "delete"]
    assert "install: ERROR: No matching distribution" in err


def test_a_lost_connection_is_made_again(launch):
    lost = {"on": ["tail "], "code": 255}
    scene = [READY, lost, lost, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "m", "--zone=z", *RUN, scene=scene)
    assert verbs(asked).count("follow") == 3
    assert verbs(asked).count("start") == 1
    scene = [READY, lost | {"always": True}]
    asked, _, err = launch("tpu_vm", "m", "--zone=z", *RUN, scene=scene, code=255)
    assert verbs(asked).count("follow") > 30  # for half an hour
    assert verbs(asked)[-1] == "follow"
    assert "m is kept, and costs; the same command follows the run there" in err
    scene = [MISSING, {"on": ["sleep 1"], "code": 255}, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "m", "--zone=z", *RUN, scene=scene)
    assert verbs(asked)[-3:] == ["code", "code", "delete"]


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("tpu_vm", ["m", "--zone=z"], "got nothing after --, expected a run"),
        ("tpu_vm", ["m", "--zone=z", "--", "evaluate"], "got evaluate after --"),
        ("tpu_vm", ["m", "--zone=z", "--", "train", "--config=a"], "no --workdir"),
        ("tpu_vm", ["m", "--zone=z", *RUN[:2], "--config=gpt_tinyy", RUN[3]], "gpt_tinyy: no such"),
        ("tpu_vm", ["m", "--zone=z", *RUN[:3], "--workdir=/data/x"], "relative to this one"),
        (
            "tpu_vm",
            ["m", "--zone=z", "--type=v5litepod-16", *RUN[:3], "--workdir=x"],
            "the workers of a v5litepod-16 share no disk",
        ),
        ("queued", ["m", "--zone=z", *RUN[:3], "--workdir=runs/a"], "in a bucket"),
        ("queued", ["m", "--zone=z", "--max-dollars=0", *RUN], "expected more than 0"),
        (
            "queued",
            ["m", "--zone=z", "--type=v99-8", "--max-dollars=5", *RUN],
            "price of --type=v99-8",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(launch, name, words, reason):
    asked, _, err = launch(name, *words, code=2)
    assert asked == []
    assert reason in err
    assert len(err.splitlines()) == 1


def test_a_queued_tpu_is_waited_for(launch):
    scene = [queue("WAITING_FOR_RESOURCES"), queue("PROVISIONING"), queue("ACTIVE"),
             {"on": ["sleep 1"], "out": "0"}]  # fmt: skip
    asked, _, err = launch("queued", "q", "--zone=z", "--type=v5p-8", *RUN, scene=scene)
    assert verbs(asked) == ["create", "describe", "describe", "describe", *WHOLE, "delete"]
    assert "q is WAITING_FOR_RESOURCES" in err
    assert {"--node-id=q", "--runtime-version=v2-alpha-tpuv5"} <= set(asked[0])
    assert "--take-over" not in next(w for words in asked for w in words if "setsid" in w)
    assert asked[-1][2:5] == ["queued-resources", "delete", "q"]
    assert "--force" in asked[-1]


def test_what_is_taken_away_is_requested_again(launch):
    lost = {"on": ["tail "], "code": 255}
    scene = [
        queue("ACTIVE"), lost, queue("ACTIVE"), lost, queue("SUSPENDED"), queue("SUSPENDED"),
        queue("FAILED"),  # it does not come
        queue("ACTIVE"), {"on": ["sleep 1"], "out": "143"}, queue("ACTIVE"), queue("SUSPENDING"),
        queue("ACTIVE"), {"on": ["sleep 1"], "out": "0"},
    ]  # fmt: skip
    asked, _, err = launch("queued", "q", "--zone=z", *RUN, scene=scene)
    assert verbs(asked).count("create") == 4
    assert verbs(asked).count("delete") == 4
    assert verbs(asked).count("follow") == 4
    assert "taken away, 10 retries left" in err
    assert "taken away, 8 retries left" in err
    starts = [word for words in asked for word in words if "setsid" in word]
    assert ["--take-over" in start for start in starts] == [False, True, True]


def test_tries_are_bounded_and_nothing_is_left(launch):
    scene = [queue("SUSPENDED", always=True)]
    asked, _, _ = launch("queued", "q", "--zone=z", "--retries=2", *RUN, scene=scene, code=75)
    assert verbs(asked).count("create") == 3
    assert verbs(asked)[-1] == "delete"


def test_a_run_that_fails_is_not_tried_again(launch):
    scene = [queue("ACTIVE", always=True), {"on": ["sleep 1"], "out": "78"}]
    asked, _, _ = launch("queued", "q", "--zone=z", *RUN, scene=scene, code=78)
    assert verbs(asked).count("create") == 1
    assert verbs(asked)[-1] == "delete"


def test_a_cap_on_the_cost_stops_and_saves(launch):
    scene = [queue("ACTIVE", always=True), {"on": ["tail "], "seconds": 0},
             {"on": ["sleep 1"], "out": "143"}]  # fmt: skip
    scene[1]["seconds"] = 3
    words = ("queued", "q", "--zone=z", "--type=v5litepod-8", "--max-dollars=0.003", *RUN)
    asked, _, err = launch(*words, scene=scene, code=75)  # 1.1 seconds
    assert verbs(asked)[-4:] == ["stop", "follow", "code", "delete"]
    assert "it has saved, the same command continues" in err
    # While it is installed, and where it cannot be told.
    scene = [queue("ACTIVE", always=True), {"on": ["pip install"], "seconds": 3}]
    asked, _, err = launch(*words, scene=scene, code=75)
    assert verbs(asked)[-2:] == ["install", "delete"]
    hangs = {"on": ["sleep 1"], "seconds": 3}
    scene = [queue("ACTIVE", always=True), hangs, {"on": ["pkill"], "err": "no route", "code": 1}]
    asked, _, err = launch(*words, scene=scene, code=75)
    assert verbs(asked)[-3:] == ["code", "stop", "delete"]
    assert "it could not be told to save: stop: no route" in err


def test_nothing_of_somebody_else_is_deleted(launch):
    exists = {"on": ["create"], "err": "ERROR: ALREADY_EXISTS: my-tpu", "code": 1}
    asked, _, err = launch("queued", "my-tpu", "--zone=z", *RUN, scene=[exists], code=1)
    assert verbs(asked) == ["create"]
    assert "a request my-tpu is there already; name another, or delete it" in err
    # An error that says "not found" of something else is no answer.
    other = {"on": ["describe"], "err": "ERROR: ssl certificate file not found", "code": 1}
    scene = [other, other, READY, {"on": ["sleep 1"], "out": "0"}]
    asked, _, _ = launch("tpu_vm", "my-tpu", "--zone=z", *RUN, scene=scene)
    assert "create" not in verbs(asked)
    assert "delete" not in verbs(asked)
    asked, _, _ = launch("tpu_vm", "my-tpu", "--zone=z", *RUN, scene=[MISSING, exists], code=1)
    assert verbs(asked) == ["describe", "create"]


def test_an_error_that_passes_does_not_end_the_queueing(launch):
    passing = {"on": ["describe"], "err": "Temporary failure in name resolution", "code": 1}
    scene = [queue("WAITING_FOR_RESOURCES"), passing, passing, queue("ACTIVE"),
             {"on": ["sleep 1"], "out": "0"}]  # fmt: skip
    asked, _, _ = launch("queued", "q", "--zone=z", *RUN, scene=scene)
    assert verbs(asked).count("create") == 1


def test_a_stuck_run_is_continued(launch):
    scene = [queue("ACTIVE", always=True), {"on": ["sleep 1"], "out": "142"},
             {"on": ["sleep 1"], "out": "0"}]  # fmt: skip
    asked, _, _ = launch("queued", "q", "--zone=z", *RUN, scene=scene)
    assert verbs(asked).count("start") == 2


def test_a_request_that_cannot_be_deleted_is_said(launch):
    stuck = {"on": ["delete"], "err": "ERROR: deadline exceeded", "code": 1, "always": True}
    scene = [queue("ACTIVE"), {"on": ["sleep 1"], "out": "0"}, stuck]
    _, _, err = launch("queued", "q", "--zone=z", *RUN, scene=scene)
    assert "q may still be there and cost" in err


def wait_until_followed(launch):
    """Until what the run says is asked for."""
    for _ in range(600):
        if "follow" in verbs(launch.asked()):
            return
        time.sleep(0.02)
    raise AssertionError("the run is not followed")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("tpu_vm", signal.SIGTERM),
        ("queued", signal.SIGINT),
        ("queued", signal.SIGHUP),
        slow("tpu_vm", signal.SIGINT),
        slow("tpu_vm", signal.SIGHUP),
        slow("queued", signal.SIGTERM),
    ],
)
def test_a_signal_lets_the_run_save_and_deletes(launch, name, number):
    scene = [MISSING, {"on": ["tail "], "seconds": 60}, {"on": ["sleep 1"], "out": "143"}]
    if name == "queued":
        scene[0] = queue("ACTIVE")
    process = launch.begin(name, "m", "--zone=z", *RUN, scene=scene)
    wait_until_followed(launch)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == {"tpu_vm": 143, "queued": 130}[name], err
    assert verbs(launch.asked())[-4:] == ["stop", "follow", "code", "delete"]


def test_what_nohup_ignores_stays_ignored(launch):
    scene = [READY, {"on": ["tail "], "seconds": 1}, {"on": ["sleep 1"], "out": "0"}]
    words = ("tpu_vm", "m", "--zone=z", *RUN)
    process = launch.begin(*words, scene=scene, nohup=True)
    wait_until_followed(launch)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "stop" not in verbs(launch.asked())


def test_a_run_that_does_not_end_is_not_deleted_unfetched(launch):
    scene = [MISSING, {"on": ["tail "], "seconds": 60}, {"on": ["pkill"], "seconds": 60}]
    words = ("tpu_vm", "m", "--zone=z", "--", "train", "--config=gpt_tiny", "--workdir=runs/a")
    process = launch.begin(*words, scene=scene)
    for verb in ("follow", "stop"):
        for _ in range(600):
            if verb in verbs(launch.asked()):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "delete" not in verbs(launch.asked())
    assert "m is kept, and costs: t5x_lite/runs/a there was not fetched" in err


def test_how_many_workers_a_type_has():
    code = "import tpu, sys; print(*map(tpu.count_workers, sys.argv[1:]))"
    types = ["v5litepod-8", "v5litepod-16", "v5p-128", "v4-8", "v6e-256", "v2-8", "v9-1"]
    command = [sys.executable, "-c", code, *types]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "launch")
    assert done.stdout == "1 2 16 1 32 1 0\n"


def test_dry_run_asks_nothing(launch):
    for name in ("tpu_vm", "queued"):
        asked, out, _ = launch(name, "m", "--zone=z", "--dry-run", *RUN)
        assert asked == []
        lines = [shlex.split(line) for line in out.splitlines() if not line.startswith("git ")]
        assert all(words[:3] == ["gcloud", "compute", "tpus"] for words in lines)
        assert any("--command=" in word and "setsid" in word for words in lines for word in words)


def test_without_gcloud_it_is_one_sentence(launch, tmp_path):
    (tmp_path / "bin/gcloud").unlink()
    _, _, err = launch("tpu_vm", "m", "--zone=z", *RUN, code=127, programs="")
    assert "gcloud is not installed" in err


def test_what_is_copied_is_what_git_tracks(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'launch')!r}); import tpu, pathlib, tarfile; "
        f"path = pathlib.Path({str(tmp_path / 'a.tar.gz')!r}); tpu.pack(path.open('wb')); "
        "print(*tarfile.open(path).getnames(), sep='\\n')"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"setup.py", "t5x_lite/__main__.py", "launch/tpu_vm"} <= set(out.stdout.split())
    assert not any(name.startswith((".venv", "runs")) for name in out.stdout.split())
