"""What travels between processes, and how."""

import os

# gRPC tells on stderr of each handshake that fails, and of each idle connection that ends, wherever it runs; who called
# is told by an error. It looks here when it is first used.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
