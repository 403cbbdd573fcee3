"""What is an interval called where a reader meets it?

By how often it held the truth in simulations. docs/methods.md lists every interval with its coverage; a
header takes its name from here.
"""

NOMINAL = "[95 %]"  # holds the truth in 93 to 97 % of the cases of every kind simulated
AT_LEAST = "[>=95 %]"  # holds it more often in some kinds: wider than it had to be there

BETWEEN_RUNS = AT_LEAST  # of a batch, a rate, an efficiency, a speed-up, a loss: analysis.scaled and others
INSIDE_RUN = AT_LEAST  # of a run's median or mean batch, of a rank's lateness, of a study's repetitions
OF_EFFECT = NOMINAL  # of the difference of two sets of runs: analysis.compare
OF_LEVELS = AT_LEAST  # of the difference of two levels of a setting: analysis.factors
OF_SHARE = AT_LEAST  # of a setting's share of the variance: analysis.factors
