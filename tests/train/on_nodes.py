"""``train.check`` or ``train.calibrate`` in a moment, of a rank that believes to be on a node of its own."""

import os
import socket
import sys

from train import calibrate, check

if __name__ == "__main__":
    socket.gethostname = lambda: f"n{os.environ['RANK']}"
    check.PAIRS_S, check.PEAK_S, check.TOGETHER_S, calibrate.TOTAL_S = 0.2, 0.01, 0.01, 0.1
    calibrate.GEMM_SIZE, calibrate.COPY_BYTES = {"cpu": 64}, {"cpu": 1 << 16}
    {"check": check, "calibrate": calibrate}[sys.argv.pop(1)].main()
