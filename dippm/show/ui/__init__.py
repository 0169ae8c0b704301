"""The page of runs, `dippm ui`; only `dippm.show.ui.page` uses Dash."""
