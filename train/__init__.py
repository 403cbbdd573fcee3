"""What one rank does."""

from profiling.errors import one_line_if_interrupted_while_loading

one_line_if_interrupted_while_loading(__name__)
