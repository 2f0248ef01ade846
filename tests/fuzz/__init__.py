"""Every RPC and endpoint with arbitrary messages: `python -m tests.fuzz --seconds 60`."""
