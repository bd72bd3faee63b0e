"""Moves messages between learners, over gRPC. The network loop runs this package, for all learners
of a process. It may touch streams, sockets and protobuf. It must never touch a tensor, ask the
engine, block the loop, or raise at what a peer does: it tells its `Handler` instead.
"""
