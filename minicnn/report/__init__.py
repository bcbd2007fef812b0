"""Reports: what a RunRecord says, for people. Nothing here needs a device or a model file."""
