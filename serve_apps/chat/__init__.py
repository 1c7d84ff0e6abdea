"""The chat service: from a checked request to a stream of events. Independent of HTTP and of Ray.

Import the modules directly; this file stays empty so that `mmserve --help` starts fast.
"""
