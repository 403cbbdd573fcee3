"""Read what profilers and watched programs write into tables (docs/structure.md).

From Python 3.15 on, the standard library has a package of the same name, from which ``cProfile`` imports.
Extending the path keeps ``profiling.tracing`` and ``profiling.sampling`` importable there.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
