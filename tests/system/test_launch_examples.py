"""The files of examples/launch: their form, and their commands with real learners on loopback.

A fake `srun` starts the tasks of a Slurm job here; what SkyPilot and Kubernetes would run is run by
a shell, with their variables. Each learner has a loopback host of its own, as if it were a machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mend_optim import certs
from mend_optim.cli.command import main
from tests.support.addresses import free_addresses

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
PATIENCE_S = 200.0
SHORT = "--batch 2 --sync-every 8 --progress json"

FAKES = {
    "python": 'exec "$PYTHON_HERE" "$@"',
    "mend": 'exec "$PYTHON_HERE" -m mend_optim "$@"',
    # `scontrol show hostnames a,b`
    "scontrol": 'test "$1 $2" = "show hostnames" && echo "$3" | tr , "\\n"',
    # one process per node, each with its number, and a host of its own to listen on
    "srun": """
        while [ "${1#--}" != "$1" ]; do shift; done
        number=0
        for host in $(echo "$SLURM_JOB_NODELIST" | tr , " "); do
            SLURM_PROCID=$number LISTEN=$host "$@" &
            number=$((number + 1))
        done
        wait
    """,
}


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """A folder with the commands of a cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in FAKES.items():
        file = folder / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def variables(fakes: Path, **told: str) -> dict[str, str]:
    here = {key: text for key, text in os.environ.items() if not key.startswith("MEND_")}
    here.pop("PYTHONUNBUFFERED", None)  # a line and its end would be two writes to a shared pipe
    path = f"{fakes}:{here['PATH']}"
    return {**here, "PATH": path, "PYTHON_HERE": sys.executable, "PYTHONPATH": str(ROOT), **told}


@contextmanager
def started(command: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Every JSON line of a process, once it has ended well."""
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def check_merged(lines: Sequence[dict[str, Any]], *names: str) -> None:
    """Every learner has merged with the other one, over TLS, and both ended on one model."""
    reports = {line["name"]: line for line in lines if line["event"] == "report"}
    assert sorted(reports) == [*names]
    assert len({report["weights"] for report in reports.values()}) == 1
    for report in reports.values():
        assert report["rounds"] >= 1
        assert report["security"].startswith("mutual TLS (secret)")
    assert any(line.get("members") == [*names] for line in lines)


def hosts_and_port() -> tuple[list[str], str]:
    """Two loopback hosts, and a port that both have free."""
    hosts = [free_addresses(1)[0].partition(":")[0] for _ in range(2)]
    with socket.create_server((hosts[0], 0)) as server:
        return hosts, str(server.getsockname()[1])


# ── Slurm ─────────────────────────────────────────────────────────────────────────────────────────


def slurm(fakes: Path, run: Path, **told: str) -> dict[str, str]:
    hosts, port = hosts_and_port()
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_NTASKS": "2",
        "RUN": str(run),
        "PORT": port,
        "PAUSE": "0",
    }
    return variables(fakes, **job, **told)


SCRIPT = LAUNCH / "slurm.sh"


def test_a_slurm_job_trains_one_model_and_goes_on_when_it_is_requeued(
    fakes: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for steps in (40, 60):
        environment = slurm(fakes, run, OPTIONS=f"{SHORT} --steps {steps}")
        with started(["bash", str(SCRIPT)], environment) as job:
            lines = said(job)
        check_merged(lines, "learner-0", "learner-1")
        assert sorted(path.name for path in run.glob("*.pt")) == ["learner-0.pt", "learner-1.pt"]
    assert [line["step"] for line in lines if line["event"] == "continue"] == [40, 40]


FAILS_ONCE = """
import os, sys
from pathlib import Path

mark = Path(os.environ["RUN"]) / os.environ["MEND_NAME"]
print(mark.name, os.environ["MEND_PEERS"], sys.argv[1:3], flush=True)
if not mark.exists():
    mark.touch()
    sys.exit(3)
"""


def test_a_learner_of_a_slurm_job_that_fails_is_started_again(fakes: Path, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS_ONCE)
    environment = slurm(fakes, tmp_path / "run", SCRIPT=str(script))
    with started(["bash", str(SCRIPT)], environment) as job:
        out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0
    hosts = environment["SLURM_JOB_NODELIST"].split(",")
    peers = ",".join(f"{host}:{environment['PORT']}" for host in hosts)
    line = "learner-{n} {peers} ['--shard', '{n}/2']"
    told = [line.format(n=number, peers=peers) for number in (0, 0, 1, 1)]
    assert sorted(filter(lambda text: text.startswith("learner"), out.splitlines())) == told


# It takes the signal even if it comes before the wait for it.
WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("waiting", flush=True)
signal.sigwait({signal.SIGTERM})
print("told to end", flush=True)
"""


def test_a_slurm_job_that_is_told_to_end_starts_nobody_again(fakes: Path, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of a task."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    environment = slurm(fakes, tmp_path / "run", SCRIPT=str(script))
    with started(["bash", str(SCRIPT)], environment) as job:
        assert job.stdout is not None
        lines = iter(job.stdout)
        waiting = 0
        while waiting < 2:
            waiting += next(lines) == "waiting\n"
        os.killpg(job.pid, signal.SIGTERM)
        assert sorted(lines) == ["told to end\n"] * 2
        job.wait(PATIENCE_S)


def test_slurm_is_asked_to_requeue_and_to_keep_a_job_without_a_node() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    options = re.findall(r"^#SBATCH (--[a-z-]+)(?:=\S+)?$", text, re.MULTILINE)
    assert len(options) == text.count("#SBATCH")
    assert {"--requeue", "--no-kill", "--ntasks-per-node"} <= set(options)
    head = text.partition("set -euo")[0]
    assert head.count("#SBATCH") == len(options)  # Slurm reads none after the first command
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


# ── SkyPilot ──────────────────────────────────────────────────────────────────────────────────────


def manifests(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((LAUNCH / name).read_text(encoding="utf-8")))


def secret_in(folder: Path) -> str:
    assert certs.main(["secret", str(folder / "cluster.secret")]) in (0, None)
    return str(folder / "cluster.secret")


def test_skypilots_task_trains_one_model(fakes: Path, tmp_path: Path) -> None:
    (task,) = manifests("skypilot.yaml")
    fields = {"name", "num_nodes", "resources", "workdir", "file_mounts", "envs", "setup", "run"}
    assert set(task) == fields
    assert task["num_nodes"] >= 2
    assert all(isinstance(value, str) for value in task["envs"].values())
    hosts, port = hosts_and_port()
    run = task["run"].replace(str(task["resources"]["ports"]), port)
    assert run.count(port) == 2
    run = run.replace("train_text.py", f"train_text.py {SHORT}")
    shared = {
        "SKYPILOT_NODE_IPS": "\n".join(hosts),
        "SKYPILOT_NUM_NODES": "2",
        "SECRET": secret_in(tmp_path),
        "CHECKPOINTS": str(tmp_path),
        **task["envs"],
        "STEPS": "40",
    }
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                started(
                    ["bash", "-c", run],
                    variables(fakes, SKYPILOT_NODE_RANK=str(rank), LISTEN=host, **shared),
                )
            )
            for rank, host in enumerate(hosts)
        ]
        lines = [line for node in nodes for line in said(node)]
    check_merged(lines, "learner-0", "learner-1")
    assert (tmp_path / "learner-1.pt").exists()


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────


def test_the_manifests_of_kubernetes_fit_together() -> None:
    service, pods = manifests("kubernetes.yaml")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (pods["apiVersion"], pods["kind"]) == ("apps/v1", "StatefulSet")
    name, template = service["metadata"]["name"], pods["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"  # a text, in Kubernetes, too
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pods["spec"]["serviceName"] == name
    assert pods["spec"]["podManagementPolicy"] == "Parallel"
    labels = template["metadata"]["labels"]
    assert pods["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    (learner,) = template["spec"]["containers"]
    environment = {each["name"]: each for each in learner["env"]}
    assert environment["MEND_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    (port,) = {each["containerPort"] for each in learner["ports"]}
    assert service["spec"]["ports"][0]["port"] == port
    assert environment["MEND_PEERS"]["value"] == f"{name}:{port}"
    assert environment["MEND_LISTEN"]["value"] == f"0.0.0.0:{port}"
    claims = {each["metadata"]["name"] for each in pods["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in template["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in learner["volumeMounts"]}
    assert set(mounts) == claims | volumes
    assert f"--checkpoint {mounts['run']}/" in learner["args"][-1]
    assert environment["MEND_SECRET_FILE"]["value"].startswith(mounts["own-secret"])
    assert f'/{pods["spec"]["replicas"]}"' in learner["args"][-1]
    assert "command" not in learner  # it would take the place of tini
    assert learner["args"][:2] == ["sh", "-c"]
    assert template["spec"]["terminationGracePeriodSeconds"] >= 30


def test_a_pod_trains_with_another_and_is_ready(fakes: Path, tmp_path: Path) -> None:
    _, pods = manifests("kubernetes.yaml")
    (learner,) = pods["spec"]["template"]["spec"]["containers"]
    hosts, port = hosts_and_port()
    secret = secret_in(tmp_path)
    probes = [learner[kind]["exec"]["command"] for kind in ("readinessProbe", "livenessProbe")]
    peers = ",".join(f"{host}:{port}" for host in hosts)
    with ExitStack() as stack:
        places = []
        for number, host in enumerate(hosts):
            disk = tmp_path / f"disk-{number}"
            disk.mkdir()
            script = learner["args"][-1].replace("/run/mend", str(disk))
            script = script.replace("/etc/mend/cluster.secret", secret).replace("/4", "/2")
            environment = variables(
                fakes,
                MEND_NAME=f"mend-{number}",
                MEND_LISTEN=f"{host}:{port}",
                MEND_PEERS=peers,
                MEND_SECRET_FILE=str(disk / "own.secret"),
            )
            pod = stack.enter_context(started(["sh", "-c", f"{script} {SHORT}"], environment))
            places.append((pod, environment, f"{host}:{port}"))
        for pod, environment, address in places:
            assert pod.stdout is not None
            lines = map(json.loads, pod.stdout)
            assert any(line.get("members") == ["mend-0", "mend-1"] for line in lines)
            for probe in probes:
                here = [word.replace("127.0.0.1:29600", address) for word in probe]
                assert here != probe
                subprocess.run(here, env=environment, check=True, timeout=PATIENCE_S)
        for pod, _, _ in places:
            pod.terminate()
            assert pod.wait(PATIENCE_S) == -signal.SIGTERM
        # nobody answers any more
        _, environment, address = places[0]
        here = [word.replace("127.0.0.1:29600", address) for word in probes[1]]
        assert subprocess.run(here, env=environment, timeout=PATIENCE_S).returncode == 1


# ── Docker ────────────────────────────────────────────────────────────────────────────────────────


def test_the_dockerfile_copies_what_there_is_and_passes_signals_on() -> None:
    text = (LAUNCH / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps = [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {step for step, _ in steps} <= known
    assert steps[0][0] == "FROM"
    for step, rest in steps:
        if step == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    found = dict(steps)
    assert json.loads(found["ENTRYPOINT"]) == ["tini", "--"]
    command = json.loads(found["CMD"])
    assert (ROOT / command[1]).is_file()
    assert found["USER"].isdecimal()  # Kubernetes can tell that it is not root
    # what the package is built from
    copied = {word for step, rest in steps if step == "COPY" for word in rest.split()[:-1]}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for file in re.findall(r'^(?:readme|license-files) = \[?"(\w+(?:\.md)?)"', project, re.M):
        assert file in copied


@pytest.mark.parametrize("words", [["status", "127.0.0.1:29600"], ["certs", "secret", "x"]])
def test_the_commands_of_the_files_are_commands_of_mend(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [path.read_text(encoding="utf-8") for path in LAUNCH.iterdir() if path.is_file()]
    assert any(f"mend {' '.join(words[:-1])} " in text for text in texts)
    with pytest.raises(SystemExit) as end:
        main([words[0], "--help"])
    assert end.value.code == 0
    assert words[0] in capsys.readouterr().out
