"""Attribution: step, stage, operator and layer of each kernel."""
