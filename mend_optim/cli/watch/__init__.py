"""`mend status` and `mend top`: how a run goes. `crowd` and `text` are pure. `live` draws with the
extra rich. `command` dials, by `transport/look.py`."""
