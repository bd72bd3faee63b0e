"""The table of tsugi-mend's settings in docs/migration.md: it has them all, and ours are real."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import mend_optim
from mend_optim import MendOptimizer

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
SECTION = re.compile(r"^## From tsugi-mend\n(.*?)^## ", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
#: The fields of `MendConfig` in tsugi-mend 0.1.5.
SETTINGS = re.findall(
    r"\w+",
    """
    quorum_min_learners grace_window_ms token_weighted_merge incremental_collect
    expected_learner_ids outer_optimizer_momentum sync_period_steps momentum_sync_period_steps
    async_tp_enabled concurrent_outer_step outer_step_cuda_stream_priority simulated_merge_delay_ms
    simulated_merge_delay_distribution outer_step_compression_mode
    outer_step_compression_powersgd_rank auto_tune_sync_period auto_tune_sync_period_warmup_steps
    auto_tune_sync_period_min failslow_window_steps failslow_zscore_threshold failslow_min_samples
    auto_tune_runtime auto_tune_runtime_window_steps auto_tune_runtime_min_samples
    auto_tune_zscore_min auto_tune_zscore_max auto_tune_grace_window_min_ms
    auto_tune_grace_window_max_ms auto_tune_cov_gain auto_tune_grace_gain auto_tune_sustain_windows
    auto_tune_drift_ewma_alpha auto_tune_drift_baseline_alpha auto_tune_drift_cusum_slack
    auto_tune_drift_cusum_threshold rack_aware nccl_topo_file sideband_addr sideband_peers
    sideband_heartbeat_ms sideband_connect_timeout_s sideband_psk sideband_peer_allowlist
    sideband_max_line_bytes sideband_inbound_read_timeout_s sideband_max_inbound_connections
    sideband_tls sideband_tls_certfile sideband_tls_keyfile sideband_tls_ca_file diagnostics_dir
    """,
)


def rows() -> list[tuple[str, str]]:
    """Their side and ours of each row of the table."""
    found = SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert found
    lines = [line for line in found[1].splitlines() if line.startswith("| `")]
    sides = [line.strip("| ").split(" | ") for line in lines]
    assert {len(each) for each in sides} == {2}
    return [(theirs, ours) for theirs, ours in sides]


def test_every_setting_is_mapped() -> None:
    named = {name for theirs, _ in rows() for name in re.findall(r"`([a-z0-9_]+)`", theirs)}
    assert named == set(SETTINGS)
    assert len(set(SETTINGS)) == len(SETTINGS)


def test_these_are_the_settings_where_it_is_installed() -> None:
    theirs = pytest.importorskip("tsugi_mend")
    assert {each.name for each in fields(theirs.MendConfig)} == set(SETTINGS)


def test_ours_are_arguments_that_can_be_written_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mend_optim.Credentials, "secret", lambda path: path)
    monkeypatch.setattr(mend_optim.Credentials, "files", lambda path: path)
    known = inspect.signature(MendOptimizer.__init__).parameters
    names = {name: getattr(mend_optim, name) for name in mend_optim.__all__}
    written = [code.split("=", 1) for _, ours in rows() for code in CODE.findall(ours)]
    settings = [pair for pair in written if len(pair) == 2]
    assert len(settings) >= 20
    for name, value in settings:
        assert name in known
        eval(value, dict(names))
