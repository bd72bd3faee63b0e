"""The user's model: its parameters in fragments, and the inner optimizer's state.

Only the training thread runs the functions that touch parameters, gradients or optimizer state;
`layout` and `copies` are also imported by the worker, for shapes. Nothing here may start a thread,
read a clock, or know the network."""
