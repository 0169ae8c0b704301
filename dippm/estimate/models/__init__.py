"""Graph and conditions → estimates: the kinds of predictors."""
