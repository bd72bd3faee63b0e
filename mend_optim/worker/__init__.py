"""The merge worker's tensors: anchors, velocities, deltas, residuals and averaged moments.

The merge worker runs this package, one job at a time. It may touch those tensors and the bytes of
messages. It must never touch a parameter, start a thread, read a clock, or decide what happens
next."""
