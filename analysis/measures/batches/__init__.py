"""Which batches did a run do, when, and how long did each take?"""
