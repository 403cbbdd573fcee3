"""PyProf, whose kernel tables are read; it is not started any more."""

from profiling.tools.base import Profiler


class PyProf(Profiler):
    """PyProf's kernel tables."""

    started = "discontinued; its tables can be read"
    reads = "not converted: `analysis` reads its kernel tables (Parquet) as they are"
    forms = "Parquet"
    reader = "profiling.readers.pyprof"
    analysed_as_it_is = True
