"""The torch island: the real forward pass behind the Executor protocol. Nothing below floor 3 imports it."""
