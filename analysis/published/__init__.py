"""Methods and tables of the reference study (SURFBoard, 2020), for comparison with the corrected ones."""
