"""D3.5's experiment on `dataset.d35`: five networks, one trained long, and the surrogate.

python -m training.d35.experiment FOLDER     # trains what is not finished; any number of calls
python -m training.d35.publish FOLDER --out checkpoints/pmgns-a100/<version>
"""
