"""Which setting matters?

    python -m analysis.factors DIR                        results of a sweep, or TAU tables of the reference
    python -m analysis.factors DIR --factors loader,grad  these only; others must not vary

The response is a run's throughput a rank (images/s over world size); of TAU tables, the published scaling
efficiency of each repetition, %. A row is a factor, or two factors together (``loader x grad``):

    levels                values that it takes; best_level: the one with the highest adjusted mean; empty: the
                          effect is not significant (p_value above 0.05, or not known)
    effect_pct            how far the adjusted mean responses of its best and its worst level are apart, over
                          the mean of all, %, with an interval of 95 % or more (_low, _high: Tukey and
                          Kramer's, which allows for having chosen the two); adjusted: of the fitted model,
                          all levels of the other factors weighing alike, since plain means of levels mix
                          factors that are not crossed; empty: the runs do not tell it from another factor
    signal_to_noise_db    Taguchi, larger is better (the reference's): range over its levels of the mean
                          signal-to-noise ratio, -10 log10(mean 1/y^2) over repetitions, dB, by plain means as
                          the reference's; rank_by_signal
    omega_squared         share of the response's variance that is its own (analysis of variance, type II;
                          Hays 1963; an estimate below 0 is 0), with an interval of 95 % or more (_low,
                          _high: of the noncentrality; it takes the runs of all configurations to scatter
                          alike)
    f_value, p_value      its F test; p is corrected for the number of tests (Holm 1979)

An interaction says that a factor's effect depends on another one; the main effects then hold on average only.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.measures.scaling.factors import COLUMNS, caption, responses, rows, shown
from analysis.results.load import load
from profiling.errors import run_command


def main() -> int:
    parser = output.parser("analysis.factors", __doc__)
    parser.add_argument("--factors", metavar="FIELD,...", help="fields of a run [all that vary]")
    arguments = parser.parse_args()
    factors = output.parse_fields(arguments.factors, flag="--factors")
    study = load(arguments.path, arguments.peaks)
    what, cells = responses(study)
    made = rows(cells, factors)
    part = Part(f"What moves {what}", made, shown(), caption(cells, made))
    return output.emit(Answer(made, COLUMNS, parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
