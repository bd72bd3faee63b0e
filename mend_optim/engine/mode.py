"""The modes of a learner in the protocol, one at a time, and the table of their changes.

    mode               entered when                                     copies  adopts  seals
    ─────────────────  ───────────────────────────────────────────────  ──────  ──────  ─────
    NEW                the engine is made; there are no weights yet     –       –       –
    JOINING            `begin`: the learner shows its weights           –       yes     –
    SOLO               it has joined, and no peer has its genesis       –       yes     begun
    FOUNDING           a lesser model has shown up: the learner's       all     –       –
                       weights are to become an anchor, for the others
    COPYING            the training thread copies them                  –       –       –
    SWITCHING_…        a greater model of another genesis is fetched    –       whole   –
    TRAINING           it has joined, and peers have its genesis        yes     yes     yes
    CLOSED             `leave`                                          –       –       –

Each of the three SWITCHING modes is named after the mode to which the learner returns if the fetch
fails. While it waits for a model, a learner takes no seal and no anchor of its own model, because
the other model would replace them.

A SOLO learner has no rounds, because its weights are the anchor. It still finishes a round that was
begun before its last peer went ("begun"), and it takes any greater anchor of its genesis.

FOUNDING and COPYING are two modes because a FOUNDING learner may still decide not to found an
anchor. Once the training thread has begun to copy, it may not.

`resting` is not a mode. It is a flag on SOLO and TRAINING, from `synchronize()` until the next
inner step. A change that the table does not list is a bug, and raises `KeyError`."""

from __future__ import annotations

from enum import Enum, auto


class Mode(Enum):
    """See the table above."""

    NEW = auto()
    JOINING = auto()
    SOLO = auto()
    FOUNDING = auto()
    COPYING = auto()
    SWITCHING_JOINING = auto()
    SWITCHING_SOLO = auto()
    SWITCHING_TRAINING = auto()
    TRAINING = auto()
    CLOSED = auto()

    @property
    def may_adopt(self) -> bool:
        """Whether the anchors may be compared with others, moved, and shown to peers."""
        return self in ADOPTING

    @property
    def may_seal(self) -> bool:
        """Whether the learner runs rounds, if it is their sealer."""
        return self in SEALING

    @property
    def before_joined(self) -> bool:
        """Whether the learner has weights to show, and may not step yet."""
        return self in BEFORE_JOINED

    @property
    def lacks_model(self) -> bool:
        """Whether the learner has no anchors yet that others could take from it, or is about to
        give its own up."""
        return self in LACKING

    @property
    def switching(self) -> bool:
        """Whether a whole other model is being fetched."""
        return self in FETCHING

    @property
    def founding(self) -> bool:
        """Whether the learner's own weights are about to become the anchor."""
        return self in FOUNDING

    @property
    def alone(self) -> bool:
        """Whether the learner has joined and no peer has its genesis: its weights are the anchor,
        with all the tokens that it has trained."""
        return self in ALONE


class Change(Enum):
    """An event that changes the mode."""

    BEGUN = auto()  # the learner has weights to show
    JOINED = auto()  # everybody it waited for is here, and peers have its genesis
    JOINED_ALONE = auto()  # the same, or its patience has run out, and nobody has its genesis
    MET_OWN_MODEL = auto()  # a peer of its genesis is at work
    LOST_ALL_PEERS = auto()  # the roster is empty
    MET_LESSER_MODEL = auto()  # a peer has a model that should give way to this learner's
    NOTHING_TO_FOUND = auto()  # nothing was trained since, or a greater model is to be fetched
    COPY_BEGUN = auto()  # the training thread copies all fragments
    COPY_FAILED = auto()  # it did not finish, by Ctrl-C for one
    FOUNDED = auto()  # the worker has made anchors of the copies, or refused them
    SWITCH_BEGUN = auto()  # a greater model of another genesis is fetched
    SWITCH_ENDED = auto()  # all of it is here, or no more of it will come
    INSTALLED = auto()  # whole anchors were taken: a peer has them, too
    LEFT = auto()  # goodbye


SWITCHING = {
    Mode.JOINING: Mode.SWITCHING_JOINING,
    Mode.SOLO: Mode.SWITCHING_SOLO,
    Mode.TRAINING: Mode.SWITCHING_TRAINING,
}
# The columns of the table above. A name of an enum takes Python long to find.
BEFORE_JOINED = (Mode.JOINING, Mode.SWITCHING_JOINING)
ADOPTING = (Mode.JOINING, Mode.SOLO, Mode.TRAINING)
SEALING = (Mode.SOLO, Mode.TRAINING)
FETCHING = tuple(SWITCHING.values())
LACKING = (Mode.NEW, Mode.JOINING, *FETCHING)
FOUNDING = (Mode.FOUNDING, Mode.COPYING)
ALONE = (Mode.SOLO, *FOUNDING, Mode.SWITCHING_SOLO)

MODES: dict[tuple[Mode, Change], Mode] = {
    (Mode.NEW, Change.BEGUN): Mode.JOINING,
    (Mode.JOINING, Change.JOINED): Mode.TRAINING,
    (Mode.JOINING, Change.JOINED_ALONE): Mode.SOLO,
    (Mode.SOLO, Change.MET_OWN_MODEL): Mode.TRAINING,
    (Mode.SWITCHING_SOLO, Change.MET_OWN_MODEL): Mode.SWITCHING_TRAINING,
    (Mode.TRAINING, Change.LOST_ALL_PEERS): Mode.SOLO,
    (Mode.SWITCHING_TRAINING, Change.LOST_ALL_PEERS): Mode.SWITCHING_SOLO,
    (Mode.SOLO, Change.MET_LESSER_MODEL): Mode.FOUNDING,
    (Mode.FOUNDING, Change.NOTHING_TO_FOUND): Mode.SOLO,
    (Mode.FOUNDING, Change.COPY_BEGUN): Mode.COPYING,
    (Mode.COPYING, Change.COPY_FAILED): Mode.FOUNDING,
    (Mode.COPYING, Change.FOUNDED): Mode.TRAINING,
    # An anchor that was already on its way when the lesser model showed up.
    (Mode.FOUNDING, Change.INSTALLED): Mode.TRAINING,
    (Mode.JOINING, Change.INSTALLED): Mode.JOINING,
    (Mode.SOLO, Change.INSTALLED): Mode.TRAINING,
    (Mode.TRAINING, Change.INSTALLED): Mode.TRAINING,
    (Mode.SWITCHING_JOINING, Change.INSTALLED): Mode.SWITCHING_JOINING,
    (Mode.SWITCHING_SOLO, Change.INSTALLED): Mode.SWITCHING_TRAINING,
    (Mode.SWITCHING_TRAINING, Change.INSTALLED): Mode.SWITCHING_TRAINING,
    **{(mode, Change.SWITCH_BEGUN): switching for mode, switching in SWITCHING.items()},
    **{(switching, Change.SWITCH_ENDED): mode for mode, switching in SWITCHING.items()},
    **{(mode, Change.LEFT): Mode.CLOSED for mode in Mode},
    # Jobs and copies that had begun before `leave` still end.
    **{(Mode.CLOSED, change): Mode.CLOSED for change in Change},
}
