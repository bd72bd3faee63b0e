"""Tensors to bytes and back: the packet format and the codecs.

The merge worker encodes and decodes; the network loop takes its receive buffers from `buffers`.
Codecs touch only the tensors and bytes they are given. They must never read a clock, draw random
numbers without a seed, or round differently on different hardware."""
