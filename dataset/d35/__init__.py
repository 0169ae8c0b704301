"""The data set of deliverable D3.5, made again: 10,508 graphs of ten families, and labels.

    python -m dataset.d35.graphs FOLDER      # graphs, in parts; hours of one core, resumable
    python -m dataset.d35.labels FOLDER      # labels predicted for them by the default predictor
    python -m dataset.d35.measured FOLDER    # labels that somebody measured
    python -m dataset.d35.publish FOLDER     # datasheet and Croissant of what is there

The labels of the original are lost. Its Table 1 says how many graphs each family has; which
architectures, image sizes and batches they were is not said, so those are ours.
"""
