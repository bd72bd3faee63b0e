"""Threads and clocks: the merge worker, the network loop, the ledger's thread and that of
`on_event`, each its own.

This package owns the mutex around the engine, and reads the clock for everything below it, all of
which it may touch. It must never write a parameter, nor block the training thread unasked."""
