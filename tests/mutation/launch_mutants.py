"""Mutants of the search for peers: each rule about names, files and stores of addresses, left
out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

RULES, NAMES, WAITS = (
    of("unit/protocol/test_seed_addresses"),
    of("unit/transport/test_seeking"),
    of("unit/membership/test_seeds"),
)
FILES = of("unit/runtime/test_peer_file", "breaks")
GOSSIP, DIALLER = of("unit/transport/test_gossip"), "transport/dialler"


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    """The others are found, whoever has started them (law 7)."""
    return Mutant(name, 7, room, old, new, tests)


LAUNCH_MUTANTS = (
    mutant(
        "whoever-is-in-peers-itself-has-nobody-else",
        "membership/seeds",
        "return bool(self._itself) and not self.found",
        "return bool(self._itself)",
        of("unit/membership/test_seeds", "never_taken_back"),
    ),
    mutant(
        "a-vanished-address-keeps-its-outcome",
        "protocol/seed_addresses",
        "        if address in self._outcomes:\n            self._outcomes[address] = outcome\n",
        "        self._outcomes[address] = outcome\n",
        RULES,
    ),
    mutant(
        "a-closed-port-of-ones-own-is-another-learner",
        "protocol/seed_addresses",
        "return bool(own) and not own & failed",
        "return bool(own) and not failed",
        RULES,
    ),
    mutant(
        "a-service-of-starting-learners-is-ones-own",
        "protocol/seed_addresses",
        "return bool(own) and not own & failed",
        "return bool(own)",
        RULES,
    ),
    mutant(
        "any-cause-is-told",
        "protocol/seed_addresses",
        "max(causes, key=_TELLING.index)",
        "causes[0]",
        RULES,
    ),
    mutant(
        "the-dead-are-dialled-for-ever",
        "transport/dialler",
        "return self._seeking.is_wanted(seed, address)",
        "return True",
        of("unit/transport/test_seeking", "newcomers"),
    ),
    mutant(
        "a-broken-link-waits-for-its-turn",
        "transport/seeking",
        "                self._changed[seed].set()\n",
        "                return\n",
        of("unit/transport/test_seeking", "returns_at_another"),
    ),
    mutant(
        "a-name-server-takes-all-away",
        "transport/seeking",
        "        except OSError:\n",
        "        except OSError:\n            self._renew(seed, [])\n",
        of("unit/transport/test_seeking", "fault_of_the_name_server"),
    ),
    mutant(
        "a-name-is-resolved-once",
        "transport/seeking",
        "        while True:\n            changed.clear()",
        "        for _ in range(1):\n            changed.clear()",
        NAMES,
    ),
    mutant(
        "the-last-name-is-not-waited-for",
        "membership/seeds",
        "if len(self.found) > 1 and address in self.found:",
        "if address in self.found:",
        WAITS,
    ),
    mutant(
        "ones-own-name-is-waited-for",
        "membership/seeds",
        "if len(self.found) > 1 and address in self.found:",
        "if False:",
        WAITS,
    ),
    mutant(
        "newcomers-at-ones-own-name-are-not-waited-for",
        "membership/seeds",
        "            self._own.remove(address)\n            self.found[address] = None\n",
        "            self._own.remove(address)\n",
        WAITS,
    ),
    mutant(
        "a-list-that-is-behind-is-not-waited-for",
        "membership/seeds",
        "return [*here, *self.awaited()]",
        "return here",
        WAITS,
    ),
    mutant(
        "a-list-of-nobody-else-is-not-waited-for",
        "membership/seeds",
        "return {**alone, **self._lists.awaited()}",
        "return self._lists.awaited()",
        WAITS,
    ),
    mutant(
        "ones-own-address-in-a-list-is-waited-for",
        "membership/seeds",
        "        self._forget(address)\n        self._itself.add(address)\n",
        "        self._forget(address)\n",
        WAITS,
    ),
    mutant(
        "what-no-list-has-stays",
        "membership/seeds",
        "            self._forget(address)\n            self._own.discard(address)\n",
        "            self._own.discard(address)\n",
        WAITS,
    ),
    mutant(
        "a-seed-vanishes-with-one-of-its-lists",
        "protocol/seed_lists",
        "dict.fromkeys([*self._given, *listed])",
        "dict.fromkeys(listed)",
        of("unit/protocol/test_seed_lists"),
    ),
    mutant(
        "a-broken-file-takes-all-away",
        "transport/seeking",
        "        except PeerError as error:\n",
        "        except PeerError as error:\n            self._listed(source.name, UNREAD)\n",
        of("unit/runtime/test_peer_file", "breaks"),
    ),
    mutant(
        "a-broken-file-warns-each-time",
        "transport/seeking",
        "elif str(error) != followed.complaint:",
        "else:",
        FILES,
    ),
    mutant(
        "a-fault-ends-the-reading",
        "transport/seeking",
        "            except Exception as error:\n",
        "            except PeerError as error:\n",
        of("unit/transport/test_seeking", "nobody_foresaw"),
    ),
    mutant(
        "a-fault-is-told-each-time",
        "transport/seeking",
        "if repr(error) != followed.fault:",
        "if True:",
        of("unit/transport/test_seeking", "nobody_foresaw"),
    ),
    mutant(
        "files-lead-beyond-this-machine",
        "runtime/peer_file",
        "                self.check(called, address)\n",
        "",
        of("unit/runtime/test_peer_file unit/test_settings", "dialled or files"),
    ),
    mutant(
        "the-store-leads-beyond-this-machine",
        "runtime/rendezvous",
        '                self.check(f"the address of rank {rank}", theirs)\n',
        "",
        of("unit/runtime/test_rendezvous", "must_not_be_dialled"),
    ),
    mutant(
        "nobody-waits-for-a-look-at-the-store",
        "runtime/rendezvous",
        "        last_work.note(threading.current_thread(), LAST_LOOK_S)\n",
        "",
        of("unit/runtime/test_last_work", "look"),
    ),
    mutant(
        "nobody-waits-for-the-last-jobs",
        "runtime/merge_worker",
        "        last_work.note(self.thread, LAST_JOBS_S)\n",
        "",
        of("unit/runtime/test_last_work", "job"),
    ),
    mutant(
        "the-exit-waits-for-no-thread",
        "runtime/open_learners",
        "    last_work.await_end()\n",
        "",
        of("unit/runtime/test_last_work", "job"),
    ),
    mutant(
        "threads-that-have-ended-are-kept",
        "runtime/last_work",
        "if not other.is_alive():",
        "if False:",
        of("unit/runtime/test_last_work", "forgotten"),
    ),
    mutant(
        "a-thread-that-never-began-is-waited-for",
        "runtime/last_work",
        "if thread.is_alive():",
        "if True:",
        of("unit/runtime/test_last_work", "never_started"),
    ),
    mutant(
        "a-learner-of-ranks-dials-itself",
        "runtime/rendezvous",
        "if seed not in own), awaited",
        "if True), awaited",
        of("unit/runtime/test_rendezvous", "others_are_those"),
    ),
    mutant(
        "a-word-that-is-no-text-is-no-fault-of-the-list",
        "runtime/rendezvous",
        'value.decode(errors="backslashreplace")',
        "value.decode()",
        of("unit/runtime/test_rendezvous", "what_is_no_address"),
    ),
    mutant(
        "a-word-that-is-no-text-is-an-address",
        "runtime/rendezvous",
        'value.decode(errors="backslashreplace")',
        'value.decode(errors="ignore")',
        of("unit/runtime/test_rendezvous", "what_is_no_address"),
    ),
    mutant(
        "silent-name-servers-hide-the-store",
        "runtime/rendezvous",
        "timedelta(seconds=OPEN_S)",
        "timedelta(seconds=CONNECT_S)",
        of("unit/runtime/test_rendezvous", "name_servers"),
    ),
    mutant(
        "a-torch-without-stores-is-no-fault-of-the-list",
        "runtime/rendezvous",
        'if not hasattr(distributed, "TCPStore"):',
        "if False:",
        of("unit/runtime/test_rendezvous", "without_stores"),
    ),
    mutant(
        "a-dead-store-is-asked-for-ever",
        "runtime/rendezvous",
        '            self._store = None\n            raise PeerError(f"the store at {place} cannot',
        '            raise PeerError(f"the store at {place} cannot',
        of("unit/runtime/test_rendezvous", "until_it_is_back"),
    ),
    mutant(
        "loopback-is-told-to-other-machines",
        "runtime/rendezvous",
        "if is_loopback(host) and not self.is_local:",
        "if False:",
        of("unit/runtime/test_rendezvous", "as_others_must_dial"),
    ),
    mutant(
        "peers-that-are-none-are-no-peers-of-the-environment",
        "given_peers",
        "    if not told:\n        variable",
        "    if not told and peers:\n        variable",
        of("unit/test_settings", "not_given or environment"),
    ),
    # Those of whom a peer tells.
    mutant(
        "new-names-wait-for-a-beat",
        "transport/control",
        "            self.after_beat(message)\n",
        "            pass\n",
        GOSSIP,
    ),
    mutant("a-name-is-news-for-ever", DIALLER, "self._looked_at |= new", "pass", GOSSIP),
    mutant(
        "all-that-were-listed-are-news",
        DIALLER,
        "self._looked_at = {id for id, _ in contacts}",
        "self._looked_at = set()",
        GOSSIP,
    ),
    mutant("one-new-name-has-all-dialled", DIALLER, " if each[0] in new)", ")", GOSSIP),
    mutant(
        "a-learner-dials-before-it-listens",
        DIALLER,
        "new and self._watching and",
        "new and",
        GOSSIP,
    ),
    mutant(
        "a-learner-that-stops-dials-on",
        DIALLER,
        "if new and self._watching and not self._links.closing:",
        "if new and self._watching:",
        GOSSIP,
    ),
)
