"""The demo: unseen tasks solved on the device, in the cloud and by a cascade, compared in a table and a report."""
