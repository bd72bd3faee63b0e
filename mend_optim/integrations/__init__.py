"""Metrics, and callbacks for trainers. They run on the user's thread, or on that of an HTTP server,
and use only the public face of an optimizer. Nothing else in this library imports them, and each
imports its own library only where it is used."""
