"""Results of single-node studies, from the tables that train.studies wrote."""
