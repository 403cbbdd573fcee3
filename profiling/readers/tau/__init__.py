"""TAU's files."""

import re

# Of the files of a thread, and of the folders of a run with several metrics.
OF_A_THREAD = re.compile(r"^(profile|snapshot)\.\d{1,9}\.\d{1,9}\.\d{1,9}$")
METRIC_FOLDER = "MULTI__"
