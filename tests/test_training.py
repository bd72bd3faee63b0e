from __future__ import annotations

from mend_optim.adopting import Adopting
from mend_optim.books import Books, Policies
from mend_optim.lineage import Lineage, PeerId
from mend_optim.progress import Progress
from mend_optim.schedule import Schedule
from mend_optim.training import Training


def test_a_copy_that_was_broken_off_is_wanted_again() -> None:
    """Ctrl-C between reserving and copying: a fragment that stayed reserved would never be offered again."""
    books = Books(PeerId("a", 1), "", [], Policies(schedule=Schedule(sync_every=2)))
    books.fragments = [Progress(PeerId("me", 1), 0, Lineage.fresh(b"genesis"), mark=0)]
    books.joined, books.solo = True, False
    training = Training(books, Adopting(books))
    for now in (1.0, 2.0):
        training.stepped(now, tokens=5)
    assert training.wanted() == [0]
    training.reserve(0)
    assert training.wanted() == []
    training.release([0])
    assert training.wanted() == [0]
    assert books.fragments[0].unmerged(books.totals).tokens == 10
