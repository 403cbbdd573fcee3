"""Parts of a step and its collectives, and the timeline."""
