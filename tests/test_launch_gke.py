"""launch/gke, with a kubectl and a docker that write down what they are given."""

import json
import subprocess
import sys
import tarfile

import pytest

PROGRAM = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
name = pathlib.Path(__file__).name
with open(here / "asked.jsonl", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if given := sys.stdin.buffer.read():
    (here / f"{{name}}.stdin").write_bytes(given)
sys.exit(3 if (here / f"{{name}}-fails").exists() else 0)
"""
RUN = ("--", "train", "--config=gpt_tiny", "--workdir=gs://bucket/it's one")
ASKED = ("my-run", "--topology=v5e:4x4", "--image=registry/t5x_lite")


@pytest.fixture
def launch(tmp_path, run_script):
    """A function that runs launch/gke: what was asked of kubectl and docker, and what it said."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("kubectl", "docker"):
        (programs / name).write_text(PROGRAM.format(python=sys.executable))
        (programs / name).chmod(0o755)

    def run(*words, code=0, path=":/usr/bin:/bin"):
        (programs / "asked.jsonl").write_text("")
        done = run_script("gke", *words, cwd=tmp_path, path=f"{programs}{path}")
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        asked = [json.loads(line) for line in (programs / "asked.jsonl").read_text().splitlines()]
        return asked, done.stdout, done.stderr

    run.programs = programs
    return run


def pod_of(manifest: dict) -> dict:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("topology", "slices", "pods", "chips", "accelerator"),
    [
        ("v5e:4x4", 1, 4, 4, "tpu-v5-lite-podslice"),
        ("v6e:1x1", 1, 1, 1, "tpu-v6e-slice"),
        ("2*v5p:4x4x4", 2, 16, 4, "tpu-v5p-slice"),
        ("7x:2x2x1", 1, 1, 4, "tpu7x"),  # eight devices of jax
    ],
)
def test_a_pod_for_each_vm_of_a_slice(launch, topology, slices, pods, chips, accelerator):
    words = (ASKED[0], f"--topology={topology}", ASKED[2], "--queue=q", "--spot")
    asked, out, _ = launch(*words, "--namespace=n", "--service-account=s", *RUN)
    assert asked == [["kubectl", "apply", "--namespace=n", "--filename=-"]]
    manifest = json.loads((launch.programs / "kubectl.stdin").read_text())
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job, pod = replicated["template"]["spec"], pod_of(manifest)
    assert replicated["replicas"] == slices
    assert (job["parallelism"], job["completions"]) == (pods, pods)
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": chips}}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology.partition(":")[2],
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["serviceAccountName"] == "s"
    assert "kubectl logs --namespace=n --follow" in out
    assert "kubectl delete jobset --namespace=n my-run" in out


@pytest.mark.parametrize("restart", ["0", "1"])
def test_a_pod_takes_the_directory_over_only_after_a_restart(launch, tmp_path, restart):
    launch(*ASKED, *RUN)
    manifest = json.loads((launch.programs / "kubectl.stdin").read_text())
    container = pod_of(manifest)["containers"][0]
    python = launch.programs / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    env = {"PATH": f"{launch.programs}:/usr/bin:/bin", container["env"][0]["name"]: restart}
    printed = subprocess.run(container["command"], env=env, capture_output=True, text=True)
    expected = ["-m", "t5x_lite", *RUN[1:], "--distributed"]
    assert printed.stdout.splitlines() == expected + ["--take-over"] * int(restart)


def test_the_set_starts_again_only_where_the_run_can_continue(launch):
    launch(*ASKED, "--retries=3", *RUN)
    manifest = json.loads((launch.programs / "kubectl.stdin").read_text())
    failure = manifest["spec"]["failurePolicy"]
    assert failure["maxRestarts"] == 3
    assert failure["rules"][0]["action"] == "FailJobSet"
    (rule,) = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["operator"] == "NotIn"
    assert set(rule["onExitCodes"]["values"]) == {134, 137, 142, 143}


def test_the_image_is_made_of_what_git_tracks(launch):
    asked, _, _ = launch(*ASKED, "--build", *RUN)
    assert [words[:2] for words in asked] == [
        ["docker", "build"], ["docker", "push"], ["kubectl", "apply"]
    ]  # fmt: skip
    with tarfile.open(launch.programs / "docker.stdin") as archive:
        names = archive.getnames()
    assert {"launch/Dockerfile", "setup.py", "constraints/3.12/tpu.txt"} <= set(names)
    assert not any(name.startswith((".venv", "runs")) for name in names)


def test_without_an_image_nothing_is_submitted(launch):
    (launch.programs / "docker-fails").touch()
    asked, _, err = launch(*ASKED, "--build", *RUN, code=3)
    assert [words[0] for words in asked] == ["docker"]
    assert err == "launch/gke: docker build failed with exit code 3\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (ASKED, "got nothing after --, expected a run"),
        ((*ASKED, *RUN[:3], "--workdir=runs/a"), "pods share no disk"),
        (("My_run", *ASKED[1:], *RUN), "got the name 'My_run'"),
        (("a" * 40, *ASKED[1:], *RUN), "at most 39"),
        (("a", "--topology=v5x:4x4", ASKED[2], *RUN), "no chip 'v5x'"),
        (("a", "--topology=h100:8x8", ASKED[2], *RUN), "expected one of v4, v5e"),
    ],
)
def test_wrong_usage_is_one_sentence(launch, words, reason):
    asked, _, err = launch(*words, code=2)
    assert asked == []
    assert reason in err
    assert err.count("\n") == 1


def test_dry_run_asks_nothing(launch):
    asked, out, _ = launch(*ASKED, "--build", "--dry-run", *RUN)
    assert asked == []
    build, push, *submit = out.splitlines()
    assert build.startswith("git ls-files -z | tar ")
    assert "docker build --tag=registry/t5x_lite" in build
    assert push == "docker push registry/t5x_lite"
    assert json.loads("\n".join(submit[1:-1]))["kind"] == "JobSet"


def test_without_kubectl_it_is_one_sentence(launch):
    (launch.programs / "kubectl").unlink()
    _, _, err = launch(*ASKED, *RUN, code=2, path="")
    assert err == "launch/gke: there is no kubectl here; see --dry-run\n"
