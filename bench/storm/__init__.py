"""Real learners under faults: `make storm`, or `python -m bench.storm`.

A supervisor (asyncio, no torch) keeps N learner processes alive and injects faults on a seeded
schedule: SIGKILL, SIGSTOP, links cut in both directions or in one. Every event is a line of JSON in
one journal. All figures are computed from the journal afterwards.

    supervisor ─ orders ─▶ prefork process ─ fork ─▶ learner ─▶ journal
        │                  (has imported torch, never starts a thread)
        └─ relays: one in front of every learner; all links between learners go through them

Every fault must be proved to have happened: by an exit status, by a state in /proc, or by bytes
that a relay held back."""
