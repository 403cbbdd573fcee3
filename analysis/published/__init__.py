"""The reference's methods and tables, beside the corrected ones."""
