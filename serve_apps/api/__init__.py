"""The OpenAI-compatible HTTP API: request schemas, error objects, responses, server-sent events, routes.

Import the modules directly; this file stays empty so that `mmserve --help` need not load pydantic.
"""
