"""``python -m profiling.convert`` whose ranks on one node come to a stop in the middle of their first file.

The others wait less long for them than they do elsewhere.

python tests/cluster/stops_here.py NODE ARGUMENTS...
"""

import socket
import sys
import time

from profiling import convert
from profiling.errors import run_command
from profiling.traces import conversion, one_unit
from profiling.traces.records import Outcome, Unit

node, arguments = sys.argv[1], sys.argv[2:]
convert_file = one_unit.tables_of


def stop_or_convert(unit: Unit) -> Outcome:
    if socket.gethostname() == node:
        time.sleep(600)
    return convert_file(unit)


conversion.LOST_S = 8.0
one_unit.tables_of = stop_or_convert
run_command(lambda: convert.main(arguments))
