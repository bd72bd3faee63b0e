"""Which peers there are, which are alive, and which are slow. The engine runs this package, under
the learner's mutex. It may touch plain data only. It must never read a clock (time is an argument),
send a message, or know an anchor.
"""
