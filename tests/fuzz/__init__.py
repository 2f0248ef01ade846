"""Every RPC and endpoint with messages of anybody's making: `python -m tests.fuzz --seconds 60`."""
