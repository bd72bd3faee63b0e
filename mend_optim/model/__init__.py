"""The user's model: its parameters in fragments, and the inner optimizer's state.

Only the training thread runs the functions that touch parameters, gradients or optimizer state. The
worker runs some of `side_copies`, and imports `layout` and `copies` for shapes. Nothing here may
start a thread, read a clock, or know the network."""
