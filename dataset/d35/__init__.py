"""The data set of deliverable D3.5, rebuilt: 10,508 graphs of ten families, and labels.

    python -m dataset.d35.graphs FOLDER      # graphs, in parts; hours of one core, resumable
    python -m dataset.d35.labels FOLDER      # labels predicted for them by the default predictor
    python -m dataset.d35.measured FOLDER    # published measured labels
    python -m dataset.d35.publish FOLDER     # datasheet and Croissant description

The labels of the original are lost. Its Table 1 states the number of graphs per family but not the
architectures, image sizes and batches, so those are our choice.
"""
