"""Limits on what a client sends, in front of uvicorn: heads, silence, bodies, pipelining and `Upgrade`.

uvicorn has no deadline for the first request of a connection, for a head, or for a body. It parses
any number of pipelined requests ahead. It ignores an `Upgrade` that it does not support, but its
parser has stopped there, so it reads the body of such a request as another request.
`LimitedConnection` stands between the transport and uvicorn's protocol and stops such clients. The
web process and the gateway share it.

This is not an HTTP server. The parser that uvicorn uses says where heads and bodies end. Everything
that keeps the limits goes to uvicorn unchanged, and uvicorn writes the answers.
"""
