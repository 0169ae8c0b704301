"""What every wing stands on: files of strangers, printed text, numbers, progress, processes."""
