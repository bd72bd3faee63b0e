"""The page docs/integrations.md: its commands and scripts run, and show what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from mend_optim.integrations.figures import FIGURES
from tests.clients.test_clients import needs
from tests.support.addresses import port_of_all_hosts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"\*(train_\w+\.py)\*:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S))
COMMANDS = re.findall(r"^ {4}(mend run .*|\.venv/bin/python .*|tensorboard .*)$", PAGE, re.M)
PATIENCE_S = 200.0


def inherited() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **own}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def shown(heading: str, begin: str) -> list[str]:
    """The lines that a section says you should see."""
    return re.findall(rf"^ {{4}}({begin}.*)$", section(heading), re.M)


def likeness(line: str) -> str:
    """A pattern for a line, in which any number may stand in place of each number."""
    parts = re.split(r"(?<![\w-])(?:[0-9a-f]{8}|\d+(?:\.\d+)?)\b", line)
    return r"[\w.+-]+".join(map(re.escape, parts))


def run(script: str, folder: Path) -> str:
    """The output of the script, as two learners."""
    (folder / script).write_text(SCRIPTS[script], encoding="utf-8")
    (command,) = [each for each in COMMANDS if script in each]
    words = shlex.split(command.replace("mend run", "-m mend_optim run"))
    told = [sys.executable if word == "python" else word for word in words]
    done = subprocess.run(
        [sys.executable, *told],
        cwd=folder,
        env=inherited(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def check_finished(heading: str, told: str) -> None:
    """Both learners say what the page says, with one digest."""
    for line in shown(heading, "learner-"):
        assert re.search(likeness(line), told), f"no line like {line} in\n{told[-4000:]}"
    digests = re.findall(r"finished .*\] (\w{8})$", told, re.M)
    assert len(digests) == 2
    assert len(set(digests)) == 1


def test_the_page_has_these_scripts() -> None:
    scripts = ["train_transformers.py", "train_lightning.py", "train_tensorboard.py"]
    assert list(SCRIPTS) == scripts
    runs = [f"mend run -n 2 -- python {script}" for script in scripts]
    assert [each for each in COMMANDS if each.startswith("mend")] == runs
    assert len(COMMANDS) == len(scripts) + 2 + 1  # two learners with metrics, and tensorboard


def test_what_is_to_be_installed_is_an_extra() -> None:
    named = re.findall(r"pip install '\.\[(\w+)\]'", PAGE)
    extras = re.findall(r"^(\w+) = \[$", (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert named == ["prometheus", "transformers", "lightning"]
    assert set(named) <= set(extras)


@needs("transformers")
def test_the_script_for_transformers(tmp_path: Path) -> None:
    told = run("train_transformers.py", tmp_path)
    assert "'mend/steps': '20'" in told
    assert "'mend/steps': '20'" in section("transformers")
    check_finished("transformers", told)


@needs("lightning")
def test_the_script_for_lightning(tmp_path: Path) -> None:
    check_finished("Lightning", run("train_lightning.py", tmp_path))
    logs = list((tmp_path / "lightning_logs").rglob("metrics.csv"))
    logs += list((tmp_path / "lightning_logs").rglob("events.*"))
    assert any(b"mend/steps" in path.read_bytes() for path in logs)


@needs("tensorboard")
def test_the_script_for_tensorboard(tmp_path: Path) -> None:
    run("train_tensorboard.py", tmp_path)
    written = [path.read_bytes() for path in (tmp_path / "runs").rglob("events.*")]
    tags = re.findall(r"`(mend/\w+(?:/\w+)?)`", section("TensorBoard"))
    assert len(tags) == 3
    for tag in [*tags, "mend/events/joined"]:
        assert sum(tag.encode() in each for each in written) >= 2, tag


# ── Prometheus ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def learners(ports: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """The page's two learners, on free ports."""
    started = []
    try:
        for command in [each for each in COMMANDS if each.startswith(".venv")]:
            for old, new in ports.items():
                command = command.replace(old, new)
            _, script, *told = shlex.split(command)
            told += ["--steps", "100000", "--batch", "2", "--sync-every", "8"]
            words = [sys.executable, str(ROOT / script), *told]
            started.append(
                subprocess.Popen(words, env=inherited(), stdout=subprocess.PIPE, text=True)
            )
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def scraped(url: str) -> str:
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except URLError:  # it does not serve yet
        return ""


@needs("prometheus_client")
def test_two_learners_with_metrics() -> None:
    """A learner prints a line about once a second: after each one, look again."""
    named = {port: port_of_all_hosts() for port in ("29600", "9464", "9465")}
    url = re.findall(r"curl -s (\S+)", PAGE)[0].replace("9464", named["9464"])
    lines = shown("Prometheus and Grafana", "mend_")
    assert len(lines) == 6
    with learners(named) as started:
        said = started[0].stdout
        assert said is not None
        for _ in said:
            told = scraped(url)
            missing = [line for line in lines if not re.search(likeness(line), told)]
            both = 'mend_last_round_members{learner="a"} 2.0' in told
            if not missing and both:
                return
        pytest.fail(f"the learner ended; not shown: {missing}")


def test_the_table_has_every_metric() -> None:
    rows = re.findall(r"^\| `(mend_\w+)` \| (.*?) \| (.*) \|$", PAGE, re.M)
    told = {name: (labels.replace("`", ""), text) for name, labels, text in rows}
    there = {
        f"mend_{figure.name}{'_total' * figure.counts}": (", ".join(figure.labels), figure.text)
        for figure in FIGURES
    }
    assert told.pop("mend_learner_info")[0] == "address, security"
    assert told == there


def test_alerts_name_metrics_and_labels_that_there_are() -> None:
    alerts = re.findall(r"^\| `([^`]*(?:==|>)[^`]*)` \|", PAGE, re.M)
    labels = {f"mend_{each.name}{'_total' * each.counts}": each.labels for each in FIGURES}
    assert len(alerts) == 6
    for alert in alerts:
        (name,) = re.findall(r"mend_\w+", alert)
        assert set(re.findall(r"(\w+)=\"", alert)) <= set(labels[name])
        assert ("increase(" in alert) == name.endswith("_total")
