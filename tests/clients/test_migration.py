"""The scripts of docs/migration.md that need another library, as they stand there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.test_clients import needs
from tests.support.addresses import free_addresses
from tests.support.pages import play_ranks, run_together
from tests.system.test_migration import FIRST, PAGE, losses

ABORTED = "terminate called without an active exception"


@needs("accelerate")
def test_local_sgd_runs(tmp_path: Path) -> None:
    ends = losses(_played(tmp_path))
    assert set(ends) == {"0", "1"}
    assert ends["0"] == ends["1"]
    assert float(ends["0"]) < FIRST / 2


def _played(folder: Path, tries: int = 3) -> list[str]:
    """The outputs of accelerate's script. As it ends, its process group sometimes aborts a process
    that has printed its loss: then all is played again."""
    place = folder / str(tries)
    place.mkdir()
    try:
        return play_ranks(PAGE, "local_sgd.py", place)
    except AssertionError as fault:
        if ABORTED not in str(fault) or tries == 1:
            raise
    return _played(folder, tries - 1)


@pytest.mark.skipif(find_spec("torchft") is None, reason="needs pip install '.[bench]'")
def test_diloco_runs(tmp_path: Path) -> None:
    """With one replica: its address is that of the host's name, which may lead nowhere here."""
    from torch.distributed import TCPStore
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    try:
        host, port = free_addresses(1)[0].split(":")
        store = TCPStore(host, int(port), is_master=True, wait_for_workers=False)
        setting = {
            "MASTER_ADDR": host,
            "MASTER_PORT": str(store.port),
            "RANK": "0",
            "WORLD_SIZE": "1",
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{lighthouse.address().rsplit(':', 1)[1]}",
        }
        ends = losses(run_together(PAGE, ["diloco.py"], tmp_path, [setting]))
    finally:
        lighthouse.shutdown()
    assert float(ends["0"]) < FIRST / 2
