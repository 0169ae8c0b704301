"""The page of runs, `dippm ui`: only `dippm.ui.page` knows Dash."""
