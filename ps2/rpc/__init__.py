"""gRPC: channels, servers, control calls, and the conversion of errors to gRPC statuses."""

import os

# gRPC would log each failed handshake and each closed idle connection to stderr; callers get errors instead. gRPC reads
# this variable on first use.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
