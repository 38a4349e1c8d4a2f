"""A worker process that is taken over: it sends what FOREIGN_FRAMES says, as hexadecimal digits, and goes on for ever."""

import os
import signal
import socket
import sys

with socket.socket(fileno=int(sys.argv[1])) as connection:
    connection.sendall(bytes.fromhex(os.environ["FOREIGN_FRAMES"]))
    signal.pause()
