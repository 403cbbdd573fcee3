"""What does a single-node study say? Read from the tables that train.studies wrote."""
