"""Credentials, and links that only their holders can open. The user's thread reads the files; the
network loop, and threads that it waits for, do the rest. It must never log, show or pickle a key,
nor let TLS and plaintext mix.
"""
