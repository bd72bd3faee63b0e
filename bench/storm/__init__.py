"""Real learners in bad weather: `make storm`, or `python -m bench.storm`.

A supervisor (asyncio, no torch) keeps N learner processes alive and does them harm on a seeded
schedule: SIGKILL, SIGSTOP, links cut in both directions or in one. Whatever happens is a line of
JSON in one journal; all figures are computed from it afterwards.

    supervisor ─ orders ─▶ nursery (has imported torch, never starts a thread) ─ fork ─▶ learner ─ journal
        └─ roads: one relay in front of every learner; all links between learners go through them

Every fault must be seen to have happened: an exit status, a state in /proc, bytes that a road held
back.
"""
