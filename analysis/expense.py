"""Memory, energy, startup and node-hours.

    python -m analysis.expense DIR                  one row per configuration, with all profilers

Memory, energy and startup come from the unprofiled runs (from profiled runs if there are no others; column
kind_of_runs says which). Node-hours include all runs that ended, failed ones too, but no interrupted ones. Of
repeated attempts that failed in the same way, only the last counts.

Energy is measured from before the first step to after the last. It includes warmup, but not startup.
"""

from analysis.frames.measure import Command

main = Command(__name__, "expense", __doc__)
